"""The deployments that a replica knows: which serve, which drain, and the pool of each model.

A part of `Guard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prime_inference.domain.models import Deployment
from prime_inference.reliability.deployment import DeploymentGuard
from prime_inference.reliability.model_pool import ModelPool


class ServesAnotherModel(ValueError):
    """A deployment that is known came with another model."""

    def __init__(self, deployment: str, model: str) -> None:
        super().__init__(f"{deployment} serves {model}: another model needs another id")
        self.deployment = deployment


class Roster:
    """`members` are all that are known, those that drain among them; `pools` are of the rest.

    `guarded` and `pool_of` make the parts of what is new; `forgotten` hears of what has ended.
    """

    def __init__(
        self,
        guarded: Callable[[Deployment], DeploymentGuard],
        pool_of: Callable[[str], ModelPool],
        forgotten: Callable[[str], None],
    ) -> None:
        self.members: dict[str, DeploymentGuard] = {}
        self.draining: set[str] = set()
        self.pools: dict[str, ModelPool] = {}
        self._guarded = guarded
        self._pool_of = pool_of
        self._forgotten = forgotten

    def configure(self, fleet: Iterable[Deployment]) -> None:
        """See `Guard.configure`. Raises ServesAnotherModel."""
        wanted = {spec.id: spec for spec in fleet if not spec.draining}
        for name, spec in wanted.items():
            known = self.members.get(name)
            if known is not None and known.model != spec.model:
                raise ServesAnotherModel(name, known.model)
        for name, spec in wanted.items():
            self._take_over(name, spec)
        gone = [member for name, member in self.members.items() if name not in wanted]
        for member in gone:
            self._close(member)
        self.draining.difference_update(wanted)
        for name in wanted:
            self.members[name].lease.reopen()
        self._group()
        for member in gone:
            self.forget_if_idle(member)

    def drain(self, member: DeploymentGuard) -> None:
        """Offer it no more; it is forgotten once its last request has ended."""
        self._close(member)
        self._group()
        self.forget_if_idle(member)

    def forget_if_idle(self, member: DeploymentGuard) -> None:
        """If it drains and nothing is in flight on it."""
        if member.id in self.draining and member.all_in_flight == 0:
            self.members.pop(member.id, None)
            self.draining.discard(member.id)
            self._forgotten(member.id)

    def _take_over(self, name: str, spec: Deployment) -> None:
        known = self.members.get(name)
        if known is None:
            self.members[name] = self._guarded(spec)
            return
        if known.spec.base_url != spec.base_url:
            known.moved()
        known.spec = spec
        if known.lease.capacity != spec.slots:
            known.lease.resize(spec.slots)

    def _close(self, member: DeploymentGuard) -> None:
        self.draining.add(member.id)
        member.lease.close()
        for lease in member.reserved.values():
            lease.close()

    def _group(self) -> None:
        groups: dict[str, list[DeploymentGuard]] = {}
        for name, member in self.members.items():
            if name not in self.draining:
                groups.setdefault(member.model, []).append(member)
        for model, members in groups.items():
            if model not in self.pools:
                self.pools[model] = self._pool_of(model)
            self.pools[model].members = tuple(members)
        for model in self.pools.keys() - groups.keys():
            self.pools[model].members = ()
            self.pools[model].look()  # nothing will be leased that anybody could wait for
