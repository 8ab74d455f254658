"""Guards with a small fleet, a clock that stands still, and a store at hand."""

from __future__ import annotations

from random import Random

from prime_inference.adapters.memory.coordination import MemoryStore
from prime_inference.domain.models import Deployment
from prime_inference.ports.coordination import ProbeAsk, ProbeResult, Trip
from prime_inference.reliability.commands import (
    Command,
    LeaseBlocks,
    ReadBreakers,
    Reply,
    ReturnBlocks,
)
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Priority, Slot


def deployment(name: str, slots: int = 4, model: str = "m") -> Deployment:
    return Deployment(
        id=name,
        model=model,
        datacenter=f"dc-{name}",
        base_url="http://127.0.0.1:1/v1",
        engine="openai",
        slots=slots,
        upstream_model=model,
    )


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fleet:
    """Guards that share one store; nothing is late and nothing is lost unless `store_up` is off."""

    def __init__(
        self, *deployments: Deployment, replicas: int = 1, settings: Settings | None = None,
        canary: bool = False, pushed: bool = False,
    ) -> None:  # fmt: skip
        self.clock = Clock()
        self.store = MemoryStore()
        self.store_up = True
        self.store_offset = 0.0  # of the store's clock
        self.calls: list[Command] = []
        self.guards = [
            Guard(f"r{number}", settings or Settings(), self.clock, Random(number), canary=canary)
            for number in range(replicas)
        ]
        for guard in self.guards:
            guard.configure(deployments)
            if pushed:
                self.store.listeners.append(guard.follow)
        self.settle()

    @property
    def guard(self) -> Guard:
        return self.guards[0]

    def settle(self) -> None:
        """Let every guard say what it has to say."""
        for _ in range(4):
            for guard in self.guards:
                for command in guard.due():
                    self.calls.append(command)
                    if self.store_up:
                        guard.accept(command, self._perform(command))
                    else:
                        guard.fail(command)

    def advance(self, seconds: float, step: float = 0.25) -> None:
        """Time passes, with everything that is done in it."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + step)
            self.settle()

    def _perform(self, command: Command) -> Reply:
        now = self.clock.now + self.store_offset
        match command:
            case LeaseBlocks():
                return [self.store.pool(ask.pool, now).lease(ask, now) for ask in command.asks]
            case ReturnBlocks():
                for pool in command.pools:
                    self.store.pool(pool, now).give_back(command.holder, command.sequence)
                return None
            case ReadBreakers():
                return self.store.breakers.read(command.known_version, now)
            case Trip():
                return self.store.breakers.trip(command, now)
            case ProbeAsk():
                return self.store.breakers.probe(command, now)
            case ProbeResult():
                return self.store.breakers.conclude(command, now)


def admit(guard: Guard, name: str, priority: Priority = Priority.INTERACTIVE) -> Slot:
    slot = guard.admit(name, priority)
    assert isinstance(slot, Slot), slot
    return slot


def attempt(guard: Guard, name: str, outcome: Outcome) -> None:
    with admit(guard, name) as slot:
        slot.record(outcome)


def fail(guard: Guard, name: str, times: int = 5) -> None:
    for _ in range(times):
        attempt(guard, name, Outcome.FAILED)
