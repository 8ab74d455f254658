"""Overflow deployments of a fleet: what is wanted beyond its file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from prime_inference.fleet.controller.overflow import Add, ModelLoad, Overflow
from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.fleet import PlannedDeployment

MARK = "-over"  # between the name of the deployment that is copied and a number


class Scaling:
    """Keeps the list of overflow deployments. The next controller adopts those that it finds.

    `gpus` are those of each datacenter, in all.
    """

    def __init__(self, overflow: Overflow, gpus: Mapping[str, int]) -> None:
        self._overflow = overflow
        self._gpus = gpus
        self._extra: dict[str, PlannedDeployment] = {}
        self._over: set[str] = set()  # those that were enough
        self._count = 0

    @property
    def extra(self) -> list[PlannedDeployment]:
        return list(self._extra.values())

    def adopt(self, fleet: Sequence[PlannedDeployment], found: Iterable[Found]) -> bool:
        """Keep overflow deployments that another controller started, as far as the budget goes;
        whether there are any."""
        templates = {one.spec.model.id: one for one in reversed(fleet)}
        mine = {one.id for one in fleet} | self._extra.keys() | self._over
        adopted = False
        for one in found:
            name, mark, number = one.deployment.rpartition(MARK)
            if not (name and mark and number.isdigit()) or one.deployment in mine:
                continue
            self._count = max(self._count, int(number))
            if one.model in templates and one.state != "draining":
                spec = templates[one.model].spec
                spent = sum(extra.spec.gpus for extra in self._extra.values())
                if spent + spec.gpus > self._overflow.settings.gpu_budget:
                    continue
                self._extra[one.deployment] = PlannedDeployment(
                    one.deployment, one.datacenter, spec
                )
                adopted = True
        return adopted

    def decide(
        self,
        now: float,
        fleet: Sequence[PlannedDeployment],
        found: Iterable[Found],
        in_flight: Mapping[str, int],
    ) -> bool:
        """Look at the load, by instance (without those that do not say it); whether what is
        wanted changed."""
        templates: dict[str, PlannedDeployment] = {}
        preferred: defaultdict[str, list[str]] = defaultdict(list)
        for one in fleet:
            templates.setdefault(one.spec.model.id, one)
            if one.datacenter not in preferred[one.spec.model.id]:
                preferred[one.spec.model.id].append(one.datacenter)
        for datacenters in preferred.values():
            datacenters += [name for name in self._gpus if name not in datacenters]
        decisions = self._overflow.decide(
            now, self._loads(templates, fleet, found, in_flight), self._free(fleet), preferred
        )
        for decision in decisions:
            if isinstance(decision, Add):
                self._add(templates[decision.model], decision.datacenter)
            else:
                del self._extra[decision.deployment]
                self._over.add(decision.deployment)
        return bool(decisions)

    def _add(self, template: PlannedDeployment, datacenter: str) -> None:
        self._count += 1
        name = f"{template.id}{MARK}{self._count}"
        self._extra[name] = PlannedDeployment(name, datacenter, template.spec)

    def _free(self, fleet: Sequence[PlannedDeployment]) -> dict[str, int]:
        free = dict(self._gpus)
        for one in [*fleet, *self._extra.values()]:
            free[one.datacenter] = free.get(one.datacenter, 0) - one.spec.gpus
        return free

    def _loads(
        self,
        templates: Mapping[str, PlannedDeployment],
        fleet: Sequence[PlannedDeployment],
        found: Iterable[Found],
        in_flight: Mapping[str, int],
    ) -> dict[str, ModelLoad]:
        slots = {one.id: one.spec.limits.slots for one in [*fleet, *self._extra.values()]}
        served: defaultdict[str, int] = defaultdict(int)
        busy: defaultdict[str, int] = defaultdict(int)
        unknown: defaultdict[str, int] = defaultdict(int)
        there: set[str] = set()
        for one in found:
            if one.state == "ready" and one.deployment in slots:
                own = slots[one.deployment]
                if one.planned is not None:  # it may have been started with other slots
                    own = one.planned.spec.limits.slots
                served[one.model] += own
                if one.name in in_flight:
                    busy[one.model] += in_flight[one.name]
                else:
                    unknown[one.model] += own
                there.add(one.deployment)
        loads = {}
        for model, template in templates.items():
            extra = [name for name, one in self._extra.items() if one.spec.model.id == model]
            loads[model] = ModelLoad(
                in_flight=busy[model],
                slots=served[model],
                starting=not there.issuperset(extra) or not served[model],
                extra=tuple(extra),
                slots_each=template.spec.limits.slots,
                gpus_each=template.spec.gpus,
                unknown=unknown[model],
            )
        return loads
