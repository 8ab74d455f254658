"""Simulated time: events in order, everything from one seed."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

Action = Callable[..., None]


class World:
    """A clock that jumps from event to event, and the only source of chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._order = itertools.count()  # events of one moment happen in the order they were made

    def at(self, when: float, action: Action, *arguments: Any) -> None:
        heapq.heappush(
            self._events, (max(when, self.now), next(self._order), action, arguments)
        )  # fmt: skip

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:
        self.at(self.now + seconds, action, *arguments)

    def run_until(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(events)
            action(*arguments)
        self.now = end


class DriftingClock:
    """A clock that runs too fast or too slow, and can be set to another time."""

    def __init__(self, world: World, rate: float, offset: float) -> None:
        self._world = world
        self._rate = rate
        self._offset = offset

    def __call__(self) -> float:
        return self._offset + self._rate * self._world.now

    def until(self, when: float) -> float:
        """True seconds until this clock shows `when`."""
        return (when - self()) / self._rate

    def step(self, seconds: float) -> None:
        self._offset += seconds
