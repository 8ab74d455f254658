"""When a model's deployments stay full, more of it; when they stay idle, less. Pure.

Hysteresis in load and in time, one change of a model at a time, and a budget in GPUs: three
reasons why a fleet does not swing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OverflowSettings:
    """Times in seconds; loads in requests in flight per slot."""

    full: float = 0.85  # the gateway refuses at 1.0; the rest is for bursts
    idle: float = 0.4  # of what would be left: far enough from `full` not to come back
    full_seconds: float = 60.0  # longer than a burst, shorter than a model takes to load
    idle_seconds: float = 900.0  # loading costs minutes of GPUs: rather too long than too short
    gpu_budget: int = 0  # GPUs that overflow may use in all

    def __post_init__(self) -> None:
        if not 0 < self.idle < self.full <= 1:
            raise ValueError("overflow: 0 < idle < full <= 1")
        if self.gpu_budget < 0 or self.full_seconds < 0 or self.idle_seconds < 0:
            raise ValueError("overflow: times and gpu_budget are 0 or more")


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model now. `extra` are overflow deployments that run, the newest last.

    Deployments that do not say how busy they are may have none of `unknown` slots in use or all:
    they make a model neither full nor idle.
    """

    in_flight: int  # of deployments that say it
    slots: int  # of deployments that serve
    starting: bool  # one is on its way: its slots are not counted yet
    extra: tuple[str, ...] = ()
    slots_each: int = 1  # of one more deployment
    gpus_each: int = 1
    unknown: int = 0


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


@dataclass(slots=True)
class _Since:
    full: float | None = None
    idle: float | None = None


@dataclass(slots=True)
class Overflow:
    """The decisions of one controller; `now` is any clock that does not jump."""

    settings: OverflowSettings
    _since: dict[str, _Since] = field(default_factory=dict)

    def decide(
        self,
        now: float,
        loads: Mapping[str, ModelLoad],
        free_gpus: Mapping[str, int],
        preferred: Mapping[str, Sequence[str]],
    ) -> list[Add | Remove]:
        """`free_gpus` of each datacenter; `preferred` datacenters of each model, best first."""
        spent = sum(len(load.extra) * load.gpus_each for load in loads.values())
        free = dict(free_gpus)
        decisions: list[Add | Remove] = []
        for model, load in loads.items():
            since = self._since.setdefault(model, _Since())
            self._observe(now, since, load)
            if load.starting:
                continue
            if self._held(now, since.full, self.settings.full_seconds):
                where = self._place(load, spent, free, preferred.get(model, ()))
                if where is not None:
                    spent += load.gpus_each
                    free[where] -= load.gpus_each
                    decisions.append(Add(model, where))
                    since.full = None
            elif load.extra and self._held(now, since.idle, self.settings.idle_seconds):
                decisions.append(Remove(model, load.extra[-1]))
                since.idle = None
        for gone in self._since.keys() - loads.keys():
            del self._since[gone]
        return decisions

    def _observe(self, now: float, since: _Since, load: ModelLoad) -> None:
        full = load.in_flight >= self.settings.full * load.slots
        left = load.slots - load.slots_each
        idle = left > 0 and load.in_flight + load.unknown <= self.settings.idle * left
        since.full = (since.full if since.full is not None else now) if full else None
        since.idle = (since.idle if since.idle is not None else now) if idle else None

    def _place(
        self, load: ModelLoad, spent: int, free: Mapping[str, int], preferred: Sequence[str]
    ) -> str | None:
        if spent + load.gpus_each > self.settings.gpu_budget:
            return None
        return next((one for one in preferred if free.get(one, 0) >= load.gpus_each), None)

    @staticmethod
    def _held(now: float, since: float | None, seconds: float) -> bool:
        return since is not None and now - since >= seconds
