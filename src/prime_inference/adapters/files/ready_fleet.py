"""A fleet that follows a file of ready deployments (`fleet.ready` has its format)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from prime_inference.domain.fleet import Fleet, FleetInvalid
from prime_inference.domain.models import Deployment, Model
from prime_inference.fleet.ready import ReadyDeployment, parse_list

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # one stat of the file: 2 us


class ReadyFleet:
    """The fleet that the file lists.

    A model that once had deployments keeps the last ones when none is ready any more: if all
    of them are said to be down at a time, whoever says so may be wrong, and the breakers see
    for themselves. The same holds for a file that cannot be read. An entry that cannot be
    served costs only itself.

    Deployments of one model may differ, while a change of it is rolled out: each has a revision
    of its own, and the model has the least context and the least output of them, and the
    revision of most slots.
    """

    def __init__(self, path: Path, parameters: frozenset[str], now: Callable[[], float]) -> None:
        self._path = path
        self._parameters = parameters
        self._now = now
        self._seen: tuple[int, int] | None = None
        self._ready: list[ReadyDeployment] = []
        self._deployments: dict[ReadyDeployment, Deployment] = {}
        self._models: dict[str, Model] = {}
        self.down: frozenset[str] = frozenset()  # ids that are said to be down
        self.refused: Mapping[str, str] = {}  # entries that are not served, with the reason

    @property
    def models(self) -> tuple[Model, ...]:
        """Every model that was ever listed."""
        return tuple(self._models.values())

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """What is ready, and what was last ready of models of which nothing is."""
        return tuple(self._deployments.values())

    def not_ready(self) -> str | None:
        """Why no request can be served, or None."""
        return None if self._ready else "no deployment is ready"

    def read(self) -> bool:
        """Take over the file if it is a new one; whether it was."""
        try:
            found = self._path.stat()
            mark = (found.st_mtime_ns, found.st_ino)
            if mark == self._seen:
                return False
            listed = parse_list(self._path.read_bytes())
        except FileNotFoundError:
            return False
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            self._note({self._path.name: f"cannot be read: {error}"})
            return False
        self._seen = mark
        self._take(listed.deployments)
        self.down = frozenset(listed.down)
        self._note(listed.refused)
        return True

    async def follow(
        self,
        serve: Callable[[Fleet], None],
        said_down: Callable[[Collection[str]], None] = lambda names: None,
        refuse: Callable[[Mapping[str, str]], None] = lambda refused: None,
    ) -> None:
        """Look at the file for ever; each new fleet is given to `serve`, then who is down.

        `refuse` is told which entries are not served, and why.
        """
        while True:
            refuse(self.refused)
            await asyncio.sleep(LOOK_SECONDS)
            if not self.read() or not self._models:
                continue
            try:
                self._serve(serve)
                said_down(self.down)
            except Exception:  # a defect: the file is read again when this is started again
                self._seen = None
                raise

    def _serve(self, serve: Callable[[Fleet], None]) -> None:
        """All of it; without those that cannot be served now, which are tried again soon."""
        log.info("%d deployments are ready", len(self._ready))
        without: dict[str, str] = {}
        while True:
            rest = [one for one in self.deployments if one.id not in without]
            places = dict.fromkeys(one.datacenter for one in rest)
            try:
                return serve(Fleet(self.models, tuple(rest), tuple(places)))
            except FleetInvalid as error:
                self._seen = None
                if not error.deployment or error.deployment in without:
                    self._note({**self.refused, self._path.name: str(error)})
                    return None
                without[error.deployment] = str(error)
                self._note({**self.refused, **without})

    def _note(self, refused: Mapping[str, str]) -> None:
        for name, reason in refused.items():
            if self.refused.get(name) != reason:
                log.error("%s is not served: %s", name, reason)
        self.refused = refused

    def _take(self, ready: list[ReadyDeployment]) -> None:
        served = {one.model for one in ready}
        self._ready = ready
        kept = [one for one in self._deployments if one.model not in served]
        # one that did not change stays the same object: connections to it are kept
        self._deployments = {
            one: self._deployments.get(one) or self._deployment(one) for one in [*ready, *kept]
        }
        by_model: dict[str, list[ReadyDeployment]] = {}
        for one in self._deployments:
            by_model.setdefault(one.model, []).append(one)
        self._models |= {name: self._model(name, ones) for name, ones in by_model.items()}

    def _model(self, name: str, ones: Sequence[ReadyDeployment]) -> Model:
        known = self._models.get(name)
        slots: Counter[str] = Counter()
        for one in ones:
            slots[one.revision] += one.slots
        return Model(
            id=name,
            revision=min(slots, key=lambda revision: (-slots[revision], revision)),
            created=int(self._now()) if known is None else known.created,
            context_tokens=min(one.context_tokens for one in ones),
            max_output_tokens=min(one.max_output_tokens for one in ones),
        )

    def _deployment(self, one: ReadyDeployment) -> Deployment:
        return Deployment(
            id=one.id,
            model=one.model,
            datacenter=one.datacenter,
            base_url=one.base_url,
            engine="dynamo",
            slots=one.slots,
            upstream_model=one.model,
            parameters=self._parameters,
            routes=frozenset(one.routes),
            revision=one.revision,
        )
