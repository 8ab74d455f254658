"""Messages that are late, lost, and overtake one another."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from tests.sim.world import Action, World


@dataclass(frozen=True, slots=True)
class Weather:
    """What every link suffers."""

    loss: float = 0.0
    slow: float = 0.0  # share of messages that are late, some of them as late as a retransmission


class Network:
    def __init__(self, world: World, weather: Weather) -> None:
        self._world = world
        self.weather = weather
        self._cut: set[frozenset[Hashable]] = set()

    def send(self, a: Hashable, b: Hashable, action: Action, *arguments: Any) -> None:
        """Perhaps do `action` a little later."""
        random = self._world.random
        if random.random() < self.weather.loss:
            return
        delay = 0.0002 + random.expovariate(2000)
        if random.random() < self.weather.slow:
            delay += random.uniform(0, random.choice([0.08, 0.08, 1.5]))
        self._world.after(delay, self._arrive, a, b, action, arguments)

    def cut(self, a: Hashable, b: Hashable) -> None:
        self._cut.add(frozenset((a, b)))

    def heal(self, a: Hashable, b: Hashable) -> None:
        self._cut.discard(frozenset((a, b)))

    def connected(self, a: Hashable, b: Hashable) -> bool:
        return frozenset((a, b)) not in self._cut

    def _arrive(self, a: Hashable, b: Hashable, action: Action, arguments: tuple[Any, ...]) -> None:
        if self.connected(a, b):
            action(*arguments)
