"""When a model's deployments stay full, more of it; when they stay idle, less. Pure.

Hysteresis in load and in time, one change of a model at a time, and a budget in GPUs: three
reasons why a fleet does not swing. An overflow deployment that does not get ready in time is
given up, so that none holds up the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OverflowSettings:
    """Times in seconds; loads in requests in flight per slot."""

    full: float = 0.85  # the gateway refuses at 1.0; the rest is for bursts
    idle: float = 0.4  # of what would be left: far enough from `full` not to come back
    full_seconds: float = 60.0  # longer than a burst, shorter than a model takes to load
    idle_seconds: float = 900.0  # loading costs minutes of GPUs: rather too long than too short
    ready_seconds: float = 900.0  # a large model from a slow disk takes 300, its image as long
    gpu_budget: int = 0  # GPUs that overflow may use in all

    def __post_init__(self) -> None:
        if not 0 < self.idle < self.full <= 1:
            raise ValueError("overflow: 0 < idle < full <= 1")
        if min(self.gpu_budget, self.full_seconds, self.idle_seconds, self.ready_seconds) < 0:
            raise ValueError("overflow: times and gpu_budget are 0 or more")


@dataclass(frozen=True, slots=True)
class Waiting:
    """An overflow deployment that does not serve; `hopeless`: it will not without a change."""

    deployment: str
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model now, where datacenters answer. `extra` are overflow deployments that serve, the
    newest last.

    Deployments that do not say how busy they are may have none of `unknown` slots in use or all:
    they make a model neither full nor idle.
    """

    in_flight: int  # of deployments that say it
    slots: int  # of deployments that serve
    starting: bool = False  # all that it had so far is on its way: nothing is known of its load
    extra: tuple[str, ...] = ()
    slots_each: int = 1  # of the newest of `extra`
    unknown: int = 0
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """A datacenter that may take one more deployment of a model, of so many GPUs."""

    datacenter: str
    gpus: int


@dataclass(frozen=True, slots=True)
class Add:
    """Start one more deployment of the model there."""

    model: str
    datacenter: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Drain this overflow deployment."""

    model: str
    deployment: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Drain this overflow deployment: it does not get ready."""

    model: str
    deployment: str


@dataclass(slots=True)
class _Since:
    full: float | None = None
    idle: float | None = None


@dataclass(slots=True)
class Overflow:
    """The decisions of one controller; `now` is any clock that does not jump."""

    settings: OverflowSettings
    _since: dict[str, _Since] = field(default_factory=dict)
    _waits: dict[str, float] = field(default_factory=dict)  # overflow deployments, since when

    def decide(
        self,
        now: float,
        loads: Mapping[str, ModelLoad],
        offers: Callable[[str], Sequence[Offer]],
        free_gpus: Mapping[str, int],
        spent: int,
    ) -> list[Add | Remove | GiveUp]:
        """`offers` for a model, best first; `free_gpus` of each datacenter; `spent`: GPUs of
        overflow deployments so far."""
        free = dict(free_gpus)
        decisions: list[Add | Remove | GiveUp] = []
        for model, load in loads.items():
            since = self._since.setdefault(model, _Since())
            self._observe(now, since, load)
            decisions += [GiveUp(model, one) for one in self._given_up(now, load)]
            if load.starting or load.waiting:
                continue
            if self._held(now, since.full, self.settings.full_seconds):
                offer = self._best(offers(model), spent, free)
                if offer is not None:
                    spent += offer.gpus
                    free[offer.datacenter] -= offer.gpus
                    decisions.append(Add(model, offer.datacenter))
                    since.full = None
            elif load.extra and self._held(now, since.idle, self.settings.idle_seconds):
                decisions.append(Remove(model, load.extra[-1]))
                since.idle = None
        for gone in self._since.keys() - loads.keys():
            del self._since[gone]
        self._forget_all_but(one.deployment for load in loads.values() for one in load.waiting)
        return decisions

    def _observe(self, now: float, since: _Since, load: ModelLoad) -> None:
        full = load.in_flight >= self.settings.full * load.slots
        left = load.slots - load.slots_each
        idle = left > 0 and load.in_flight + load.unknown <= self.settings.idle * left
        since.full = (since.full if since.full is not None else now) if full else None
        since.idle = (since.idle if since.idle is not None else now) if idle else None

    def _given_up(self, now: float, load: ModelLoad) -> list[str]:
        return [
            one.deployment
            for one in load.waiting
            if one.hopeless
            or self._held(
                now, self._waits.setdefault(one.deployment, now), self.settings.ready_seconds
            )
        ]

    def _forget_all_but(self, waiting: Iterable[str]) -> None:
        self._waits = {name: self._waits[name] for name in waiting if name in self._waits}

    def _best(self, offers: Sequence[Offer], spent: int, free: Mapping[str, int]) -> Offer | None:
        budget = self.settings.gpu_budget - spent
        return next(
            (one for one in offers if one.gpus <= min(budget, free.get(one.datacenter, 0))), None
        )

    @staticmethod
    def _held(now: float, since: float | None, seconds: float) -> bool:
        return since is not None and now - since >= seconds
