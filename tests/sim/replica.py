"""A gateway replica of a simulation: production's `Guard`, in a process that can stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from prime_inference.domain.models import Deployment
from prime_inference.ports.coordination import Push
from prime_inference.reliability.commands import Command, Reply
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.runner import LEAST_SLEEP_S
from prime_inference.reliability.settings import Settings
from tests.sim.network import Network
from tests.sim.store import STORE, SimStore
from tests.sim.world import Action, DriftingClock, World

CALL_S = 0.05


class Replica:
    def __init__(
        self,
        name: str,
        world: World,
        network: Network,
        store: SimStore,
        clock: DriftingClock,
        settings: Settings,
        fleet: Sequence[Deployment],
        *,
        canary: Callable[[Replica, str], None] | None,
    ) -> None:
        self.name = name
        self.alive = True
        self.clock = clock
        self.calls = 0
        self.guard = Guard(
            name, settings, clock, Random(world.random.random()), canary=canary is not None
        )
        self._world = world
        self._network = network
        self._store = store
        self._canary = canary
        self._paused = False
        self._missed: list[tuple[Action, tuple[Any, ...]]] = []
        self._pump_at = math.inf
        store.subscribe(name, self._pushed)
        self.guard.wake = self._wake
        self.guard.configure(fleet)

    @property
    def running(self) -> bool:
        return self.alive and not self._paused

    def do(self, action: Action, *arguments: Any) -> None:
        """Something happens in this process: later if it is paused, never if it is dead."""
        if self._paused:
            self._missed.append((action, arguments))
        elif self.alive:
            action(*arguments)

    def crash(self) -> None:
        self.alive = False
        self._missed.clear()
        self._store.unsubscribe(self.name)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        missed, self._missed = self._missed, []
        for action, arguments in missed:
            self.do(action, *arguments)

    def stop_properly(self) -> None:
        self._call(self.guard.farewell())
        self.crash()

    # --- what `Runner` does ---

    def _wake(self) -> None:
        self._pump_after(0.0)

    def _pump_after(self, seconds: float) -> None:
        when = self._world.now + seconds
        if when < self._pump_at:
            self._pump_at = when
            self._world.at(when, self._pump_is_due, when)

    def _pump_is_due(self, when: float) -> None:
        if when == self._pump_at:  # otherwise an earlier one was scheduled since
            self._pump_at = math.inf
            self.do(self._pump)

    def _pump(self) -> None:
        for command in self.guard.due():
            self._call(command)
        if self._canary is not None:
            for name in self.guard.probes_due():
                self._canary(self, name)
        wait = self.clock.until(self.guard.next_due())
        self._pump_after(max(LEAST_SLEEP_S, wait))

    def _call(self, command: Command) -> None:
        self.calls += 1
        answered = False

        def answer(reply: Reply) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.guard.accept(command, reply)
                self._wake()

        def give_up() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.guard.fail(command)
                self._wake()

        self._network.send(
            self.name, STORE, self._store.call, self.name, command,
            lambda reply: self.do(answer, reply),
        )  # fmt: skip
        self._world.after(CALL_S, self.do, give_up)

    def _pushed(self, push: Push) -> None:
        self.do(self.guard.follow, push)
