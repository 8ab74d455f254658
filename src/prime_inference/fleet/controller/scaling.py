"""Overflow deployments of a fleet: what is wanted beyond its file."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prime_inference.fleet.controller.overflow import (
    Add,
    GiveUp,
    ModelLoad,
    Offer,
    Overflow,
    Waiting,
)
from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.spec import Spec

log = logging.getLogger(__name__)

MARK = "-over"  # between the name of the deployment that is copied and a number


@dataclass(frozen=True, slots=True)
class _Extra:
    """An overflow deployment: what it is, the file says."""

    model: str
    datacenter: str


class Scaling:
    """Keeps the list of overflow deployments. The next controller adopts those that it finds.

    They are what the file's deployments of their model are, as it changes. `gpus` are those of
    each datacenter, in all.
    """

    def __init__(self, overflow: Overflow, gpus: Mapping[str, int]) -> None:
        self._overflow = overflow
        self._gpus = gpus
        self._fleet: Sequence[PlannedDeployment] = ()
        self._templates = _Templates(())
        self._extra: dict[str, _Extra] = {}
        self._over: set[str] = set()  # those that were enough, or given up
        self._failed: dict[tuple[str, str], tuple[Spec, float]] = {}  # by model and datacenter
        self._count = 0

    def follow(self, fleet: Sequence[PlannedDeployment]) -> list[PlannedDeployment]:
        """The overflow deployments beside this fleet. Those for which it has no model, no GPUs
        or no budget any more end; its own deployments come first."""
        if fleet is not self._fleet:
            self._fleet, self._templates = fleet, _Templates(fleet)
        free, left = self._free(fleet), self._overflow.settings.gpu_budget
        extra: dict[str, PlannedDeployment] = {}
        for name, one in self._extra.items():
            template = self._templates.of(one.model, one.datacenter)
            if template is None:
                continue
            gpus = template.spec.gpus
            if gpus <= min(left, free.get(one.datacenter, 0)):
                extra[name] = PlannedDeployment(name, one.datacenter, template.spec)
                free[one.datacenter] = free.get(one.datacenter, 0) - gpus
                left -= gpus
        for name in self._extra.keys() - extra.keys():
            log.info("%s ends: the file has no model, GPUs or budget for it any more", name)
            self._over.add(name)
        self._extra = {name: self._extra[name] for name in extra}
        return list(extra.values())

    def adopt(self, found: Iterable[Found]) -> bool:
        """Keep overflow deployments that another controller started, as far as they fit beside
        the fleet (`follow`); whether there are any."""
        known = self._extra.keys() | self._over
        adopted = False
        for one in found:
            name, mark, number = one.deployment.rpartition(MARK)
            if not (name and mark and number.isdigit()) or one.deployment in known:
                continue
            self._count = max(self._count, int(number))
            if one.state != "draining" and self._templates.of(one.model, one.datacenter):
                self._extra[one.deployment] = _Extra(one.model, one.datacenter)
                adopted = True
        return adopted

    def decide(
        self,
        now: float,
        found: Iterable[Found],
        in_flight: Mapping[str, int],
        silent: Collection[str] = (),
    ) -> bool:
        """Look at the load, by instance (without those that do not say it); whether what is
        wanted changed. Datacenters that are `silent` are no room, and none for more."""
        extra = self.follow(self._fleet)
        decisions = self._overflow.decide(
            now,
            self._loads(extra, found, in_flight, silent),
            lambda model: self._offers(model, now, silent),
            self._free([*self._fleet, *extra]),
            sum(one.spec.gpus for one in extra),
        )
        for decision in decisions:
            if isinstance(decision, Add):
                self._add(decision)
                continue
            gone = self._extra.pop(decision.deployment)
            self._over.add(decision.deployment)
            if isinstance(decision, GiveUp):
                self._note_failure(decision, gone.datacenter, now)
        return bool(decisions)

    def _add(self, decision: Add) -> None:
        template = self._templates.of(decision.model, decision.datacenter)
        assert template is not None, decision
        self._count += 1
        name = f"{template.id}{MARK}{self._count}"
        self._extra[name] = _Extra(decision.model, decision.datacenter)

    def _note_failure(self, decision: GiveUp, datacenter: str, now: float) -> None:
        log.error("%s in %s is given up: it does not get ready", decision.deployment, datacenter)
        template = self._templates.of(decision.model, datacenter)
        assert template is not None, decision
        self._failed[decision.model, datacenter] = template.spec, now

    def _offers(self, model: str, now: float, silent: Collection[str]) -> list[Offer]:
        """Its own datacenters first. One where it did not get ready is not tried again for as
        long, unless it is something else now."""
        offers = []
        for datacenter in dict.fromkeys([*self._templates.datacenters(model), *self._gpus]):
            template = self._templates.of(model, datacenter)
            if template is None or datacenter in silent:
                continue
            spec, since = self._failed.get((model, datacenter), (None, 0.0))
            if spec != template.spec or now - since >= self._overflow.settings.ready_seconds:
                offers.append(Offer(datacenter, template.spec.gpus))
        return offers

    def _free(self, deployments: Iterable[PlannedDeployment]) -> dict[str, int]:
        free = dict(self._gpus)
        for one in deployments:
            free[one.datacenter] = free.get(one.datacenter, 0) - one.spec.gpus
        return free

    def _loads(
        self,
        extra: Sequence[PlannedDeployment],
        found: Iterable[Found],
        in_flight: Mapping[str, int],
        silent: Collection[str],
    ) -> dict[str, ModelLoad]:
        by_deployment: defaultdict[str, list[Found]] = defaultdict(list)
        for one in found:
            by_deployment[one.deployment].append(one)
        slots, busy, unknown = self._slots([*self._fleet, *extra], by_deployment, in_flight, silent)
        serving: defaultdict[str, list[PlannedDeployment]] = defaultdict(list)
        waiting: defaultdict[str, list[Waiting]] = defaultdict(list)
        for planned in extra:
            instances = by_deployment.get(planned.id, [])
            if any(one.state == "ready" and one.datacenter not in silent for one in instances):
                serving[planned.spec.model.id].append(planned)
            elif planned.datacenter not in silent or not instances:
                waiting[planned.spec.model.id].append(_waiting(planned, instances, silent))
        expected = {
            one.spec.model.id for one in self._fleet if one.datacenter not in silent
        }  # of those that serve nothing yet
        loads = {}
        for model in self._templates.models:
            newest = serving[model][-1] if serving[model] else None
            loads[model] = ModelLoad(
                in_flight=busy[model],
                slots=slots[model],
                starting=not slots[model] and model in expected,
                extra=tuple(one.id for one in serving[model]),
                slots_each=newest.spec.limits.slots if newest is not None else 0,
                unknown=unknown[model],
                waiting=tuple(waiting[model]),
            )
        return loads

    @staticmethod
    def _slots(
        wanted: Iterable[PlannedDeployment],
        by_deployment: Mapping[str, Sequence[Found]],
        in_flight: Mapping[str, int],
        silent: Collection[str],
    ) -> tuple[Mapping[str, int], Mapping[str, int], Mapping[str, int]]:
        """Of each model: slots that serve, how many are in use, and in how many it is not known."""
        slots: defaultdict[str, int] = defaultdict(int)
        busy: defaultdict[str, int] = defaultdict(int)
        unknown: defaultdict[str, int] = defaultdict(int)
        as_filed = {one.id: one for one in wanted}
        for name, instances in by_deployment.items():
            for one in instances:
                planned = one.planned or as_filed.get(name)  # it may have other slots by now
                if one.state != "ready" or one.datacenter in silent or planned is None:
                    continue
                own = planned.spec.limits.slots
                slots[one.model] += own
                if one.name in in_flight:
                    busy[one.model] += in_flight[one.name]
                else:
                    unknown[one.model] += own
        return slots, busy, unknown


def _waiting(
    planned: PlannedDeployment, instances: Collection[Found], silent: Collection[str]
) -> Waiting:
    """One whose datacenter fell silent before it was there will not be there."""
    states = {one.state for one in instances}
    hopeless = states == {"crash-looping"} or planned.datacenter in silent
    return Waiting(planned.id, hopeless)


class _Templates:
    """What a further deployment of a model would be: as the file's first one in the datacenter,
    which may have other hardware than others, else as its first one anywhere."""

    def __init__(self, fleet: Sequence[PlannedDeployment]) -> None:
        self._by_place: dict[str, dict[str, PlannedDeployment]] = {}
        for one in fleet:
            self._by_place.setdefault(one.spec.model.id, {}).setdefault(one.datacenter, one)

    @property
    def models(self) -> Collection[str]:
        return self._by_place.keys()

    def datacenters(self, model: str) -> Collection[str]:
        """Those that have it, in the order of the file."""
        return self._by_place.get(model, {}).keys()

    def of(self, model: str, datacenter: str) -> PlannedDeployment | None:
        places = self._by_place.get(model)
        if not places:
            return None
        return places.get(datacenter) or next(iter(places.values()))
