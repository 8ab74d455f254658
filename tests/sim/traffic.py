"""Requests of a simulation: each goes the way the gateway goes, and ends exactly once."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.reserved_capacity import ReservedWaiter
from prime_inference.reliability.slots import Priority, Reason, Refusal, Slot
from prime_inference.reliability.waiting import Waiter
from tests.sim.engine import FIRST_TOKEN_LIMIT_S, Course, End, Engine
from tests.sim.network import Network
from tests.sim.replica import Replica
from tests.sim.tries import Tries
from tests.sim.world import World

MOST_WAITS = 5  # of a second each: gateway/tries.py, LONGEST_PAUSE
OUTCOMES = {
    End.ANSWERED: Outcome.ANSWERED,
    End.FAILED: Outcome.FAILED,
    End.REFUSED: Outcome.NEUTRAL,
}


@dataclass(eq=False, slots=True)
class Attempt:
    """A request on a deployment, as long as its slot is taken."""

    replica: Replica
    deployment: str
    slot: Slot
    tainted: bool = False  # its lease has lapsed, or there was none: see invariants.py
    untold: bool = False  # admitted before the store had ever told its replica what it may have

    @property
    def reservation(self) -> str:
        """Whose slot it has; empty: one that everybody shares."""
        return self.slot.pool.partition(":")[2]


@dataclass(slots=True)
class Books:
    """What is going on, seen from outside."""

    open: dict[str, set[Attempt]] = field(default_factory=lambda: defaultdict(set))
    probes: dict[str, set[Attempt]] = field(default_factory=lambda: defaultdict(set))
    begun: int = 0
    recalled: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    unfinished: set[Request] = field(default_factory=set)
    admitted: Callable[[Attempt], None] = lambda attempt: None
    asks: Iterator[int] = field(default_factory=lambda: itertools.count(1))  # for shared slots
    latest_batch: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By replica and model: the last to ask of the batch requests that were admitted."""
    cut_off: Counter[tuple[str, str, Priority]] = field(default_factory=Counter)
    """By replica, model and class: answers that have begun and wait for a slot to go on."""


class Request:
    """One request of a client, on one replica."""

    def __init__(
        self,
        world: World,
        network: Network,
        engines: dict[str, Engine],
        books: Books,
        replica: Replica,
        model: str,
        priority: Priority,
        mean_s: float,
        reservation: str = "",
    ) -> None:
        self._world = world
        self._network = network
        self._engines = engines
        self._books = books
        self._replica = replica
        self._model = model
        self._priority = priority
        self._mean_s = mean_s
        self._tries = Tries(replica.guard, model)
        self._attempt: Attempt | None = None
        self._reservation = reservation
        self._waiter: Waiter | None = None
        self._reserved_waiter: ReservedWaiter | None = None
        self._asked = 0  # in the order of all who asked for shared slots
        self._begun = False  # a client has a part of the answer
        self._waits = 0  # in a row
        self._ended = False
        books.begun += 1
        books.unfinished.add(self)

    @property
    def replica(self) -> Replica:
        return self._replica

    def go(self) -> None:
        """Try the candidates in order; wait if all are full and it pays."""
        if self._reservation and self._goes_to_reserved():
            return
        self._go_to_shared()

    def _goes_to_reserved(self) -> bool:
        reserved = self._replica.guard.reserved
        for name in self._tries.candidates():
            slot = reserved.admit(name, self._reservation)
            if slot is not None:
                self._start(slot)
                return True
        self._reserved_waiter = reserved.wait(self._reservation, self._reserved_delivered)
        return self._reserved_waiter is not None

    def _go_to_shared(self) -> None:
        guard = self._replica.guard
        self._asked = next(self._books.asks)
        for name in self._tries.candidates():
            slot = guard.admit(name, self._priority)
            if isinstance(slot, Slot):
                self._start(slot)
                return
        waiter = guard.wait(self._model, self._priority, self._delivered, begun=self._begun)
        if isinstance(waiter, Refusal):
            assert waiter.retry_after_s > 0
            assert not self._begun or waiter.reason is Reason.DRAINED
            self._refused()
        else:
            self._waiter = waiter
            self._books.cut_off[self._line] += self._begun

    def leave(self) -> None:
        """The client goes away."""
        if self._ended:
            return
        if self._reserved_waiter is not None:
            assert self._replica.guard.reserved.leave(self._reserved_waiter)
        elif self._waiter is not None:
            assert self._replica.guard.leave(self._model, self._waiter)
            self._books.cut_off[self._line] -= self._begun
        elif self._attempt is not None:
            self._close(self._attempt)
        self._end("left")

    def vanish(self) -> None:
        """The replica died, and the request with it."""
        if not self._ended:
            if self._waiter is not None:
                self._books.cut_off[self._line] -= self._begun
            if self._attempt is not None:
                self._forget(self._attempt)
            self._end("vanished")

    def _reserved_delivered(self, result: Slot | Refusal) -> None:
        assert self._reserved_waiter is not None
        assert not self._ended
        self._reserved_waiter = None
        if isinstance(result, Refusal):
            self._go_to_shared()  # it spills
        else:
            self._start(result)

    def _recalled(self, attempt: Attempt) -> None:
        """Its slot was lent: it goes elsewhere, or waits."""
        assert attempt is self._attempt
        self._attempt = None
        self._forget(attempt)
        self._books.recalled += 1
        self._world.after(0, self._replica.do, self._again)

    def _again(self) -> None:
        if not self._ended:
            self.go()

    def _delivered(self, result: Slot | Refusal) -> None:
        assert self._waiter is not None
        assert not self._ended
        self._waiter = None
        self._books.cut_off[self._line] -= self._begun
        if isinstance(result, Slot):
            assert self._begun or not self._books.cut_off[self._line], "a newcomer went first"
            self._start(result)
        elif self._begun and self._waits < MOST_WAITS:
            self._waits += 1
            self._world.after(0, self._replica.do, self._again)
        else:
            self._refused()

    def _refused(self) -> None:
        """No batch request that came later may have got what an interactive one did not."""
        if self._priority is Priority.INTERACTIVE:
            assert self._books.latest_batch[self._place] < self._asked, "batch went first"
        self._end("refused")

    @property
    def _line(self) -> tuple[str, str, Priority]:
        return *self._place, self._priority

    @property
    def _place(self) -> tuple[str, str]:
        return self._replica.name, self._model

    def _start(self, slot: Slot) -> None:
        if slot.priority is Priority.BATCH:
            latest = self._books.latest_batch
            latest[self._place] = max(latest[self._place], self._asked)
        self._waits = 0
        name = slot.deployment
        self._tries.started(name)
        attempt = self._attempt = Attempt(self._replica, name, slot)
        self._books.open[name].add(attempt)
        slot.when_recalled(partial(self._recalled, attempt))
        if slot.ticket is not None:
            self._books.probes[name].add(attempt)
        self._books.admitted(attempt)
        course = self._course(self._engines[name])
        if course.first_token_s is not None:
            self._world.after(
                course.first_token_s, self._replica.do, self._first_token, attempt
            )  # fmt: skip
        self._world.after(course.end_s, self._replica.do, self._finish, attempt, course.end)

    def _course(self, engine: Engine) -> Course:
        if not self._network.connected(self._replica.name, engine.spec.id):
            return Course(None, FIRST_TOKEN_LIMIT_S, End.FAILED)
        return engine.course(self._world.random, self._mean_s)

    def _first_token(self, attempt: Attempt) -> None:
        if attempt is self._attempt:
            attempt.slot.first_token()
            self._begun = True
            self._books.probes[attempt.deployment].discard(attempt)

    def _finish(self, attempt: Attempt, end: End) -> None:
        if attempt is not self._attempt:
            return
        attempt.slot.record(OUTCOMES[end])
        self._attempt = None
        self._close(attempt)
        if end is End.ANSWERED:
            self._end("answered")
        elif self._tries.may_go_on(attempt.deployment):
            self.go()
        else:
            self._end("failed")

    def _close(self, attempt: Attempt) -> None:
        self._forget(attempt)
        attempt.slot.release()
        attempt.slot.release()  # a second time changes nothing

    def _forget(self, attempt: Attempt) -> None:
        self._books.open[attempt.deployment].discard(attempt)
        self._books.probes[attempt.deployment].discard(attempt)

    def _end(self, how: str) -> None:
        assert not self._ended, "a request ended twice"
        self._ended = True
        self._attempt = None
        self._waiter = self._reserved_waiter = None
        self._books.unfinished.discard(self)
        self._books.ends[how] += 1


def canary(
    world: World, network: Network, engines: dict[str, Engine], books: Books
) -> Callable[[Replica, str], None]:
    """Sends one-token generations on tickets."""

    def send(replica: Replica, name: str) -> None:
        slot = replica.guard.probe_slot(name)
        if slot is None:
            return
        attempt = Attempt(replica, name, slot)
        books.open[name].add(attempt)
        books.probes[name].add(attempt)
        books.admitted(attempt)
        engine = engines[name]
        if network.connected(replica.name, name):
            course = engine.course(world.random, 0.01)
        else:
            course = Course(None, FIRST_TOKEN_LIMIT_S, End.FAILED)

        def finish() -> None:
            books.open[name].discard(attempt)
            books.probes[name].discard(attempt)
            if course.first_token_s is not None:
                slot.first_token()
            slot.record(OUTCOMES[course.end])
            slot.release()

        world.after(course.end_s, replica.do, finish)

    return send
