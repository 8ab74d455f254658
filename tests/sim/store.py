"""The coordination store of a simulation: production's rules, behind a bad network."""

from __future__ import annotations

from collections.abc import Callable

from prime_inference.adapters.memory.coordination import MemoryStore
from prime_inference.ports.coordination import ProbeAsk, ProbeResult, Push, Trip
from prime_inference.reliability.commands import (
    Command,
    LeaseBlocks,
    ReadBreakers,
    Reply,
    ReturnBlocks,
)
from prime_inference.reliability.settings import LeaseSettings
from tests.sim.network import Network
from tests.sim.world import DriftingClock, World

STORE = "store"
LEASE_S = LeaseSettings().ttl_s
LEARNING_S = LEASE_S


class SimStore:
    """One server. It can freeze, die and come back empty, and its clock can be set."""

    def __init__(self, world: World, network: Network, clock: DriftingClock) -> None:
        self.clock = clock
        self.incarnation = 0
        self._started_at = world.now
        self.state = MemoryStore(LEARNING_S)
        self.before_lease: Callable[[], None] = lambda: None
        self._world = world
        self._network = network
        self._subscribers: dict[str, Callable[[Push], None]] = {}
        self._up = True
        self._frozen = False
        self._queue: list[tuple[str, Command, Callable[[Reply], None]]] = []
        self.state.listeners.append(self._push)

    def call(self, caller: str, command: Command, answer: Callable[[Reply], None]) -> None:
        """A command has arrived."""
        if self._frozen:
            self._queue.append((caller, command, answer))
        elif self._up:
            reply = self._perform(command)
            self._network.send(STORE, caller, answer, reply)

    def subscribe(self, name: str, listener: Callable[[Push], None]) -> None:
        self._subscribers[name] = listener

    def unsubscribe(self, name: str) -> None:
        self._subscribers.pop(name, None)

    def freeze(self) -> None:
        self._frozen = True

    def thaw(self) -> None:
        """Work off what has piled up: connections are not served in the order of arrival."""
        self._frozen = False
        queue, self._queue = self._queue, []
        self._world.random.shuffle(queue)
        for call in queue:
            self.call(*call)

    def stop(self) -> None:
        self._up = False
        self._queue.clear()

    def start_empty(self) -> None:
        self._up = True
        self._started_at = self._world.now
        self.incarnation += 1
        self.state = MemoryStore(LEARNING_S)
        self.state.listeners.append(self._push)

    def leases(self, pool: str) -> dict[str, tuple[int, int]]:
        """Epoch, and slots counted against it, of every live lease of a pool."""
        now = self.clock()
        return self.state.pool(pool, now).leases(now)

    @property
    def has_to_learn(self) -> bool:
        """Whether leases of the time before it was emptied may still be valid."""
        return self._world.now < self._started_at + LEASE_S * 0.98

    def _push(self, push: Push) -> None:
        for name, listener in self._subscribers.items():
            self._network.send(STORE, name, listener, push)

    def _perform(self, command: Command) -> Reply:
        now = self.clock()
        match command:
            case LeaseBlocks():
                self.before_lease()
                return [self.state.pool(ask.pool, now).lease(ask, now) for ask in command.asks]
            case ReturnBlocks():
                for pool in command.pools:
                    self.state.pool(pool, now).give_back(command.holder, command.sequence)
                return None
            case ReadBreakers():
                return self.state.breakers.read(command.known_version, now)
            case Trip():
                return self.state.breakers.trip(command, now)
            case ProbeAsk():
                return self.state.breakers.probe(command, now)
            case ProbeResult():
                return self.state.breakers.conclude(command, now)
