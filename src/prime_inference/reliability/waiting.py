"""A bounded queue for slots of one model: joined only if a slot is expected soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from itertools import takewhile

from prime_inference.reliability.slots import Priority, Refusal, Slot


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue. `deliver` is called exactly once, unless it leaves before."""

    priority: Priority
    deadline: float
    deliver: Callable[[Slot | Refusal], None]
    among: Set[str] | None = None  # the deployments that can serve it; None: every one
    begun: bool = False  # part of the answer was sent: it cannot come later
    prolonged: bool = False  # its time was over as slots were about to come

    def competes(self, among: Set[str] | None) -> bool:
        """Whether it may take a slot that one of `among` would give."""
        return self.among is None or among is None or not self.among.isdisjoint(among)


class WaitingLine:
    """Interactive requests before batch; within a class answers that have begun, then the others,
    each in the order in which they came."""

    __slots__ = ("_lines", "size")

    def __init__(self) -> None:
        self._lines: dict[Priority, deque[Waiter]] = {each: deque() for each in Priority}
        self.size = 0  # looked at with every slot that is given back

    def ahead_of(self, priority: Priority, among: Set[str] | None = None) -> int:
        """Waiters that would be served before a newcomer of that priority who wants `among`."""
        if among is None:  # asked with every refusal
            return sum(len(line) for each, line in self._lines.items() if each <= priority)
        return sum(
            waiter.competes(among)
            for each, line in self._lines.items()
            if each <= priority
            for waiter in line
        )

    def join(self, waiter: Waiter) -> None:
        line = self._lines[waiter.priority]
        if waiter.begun:
            line.insert(sum(1 for _ in takewhile(_has_begun, line)), waiter)
        else:
            line.append(waiter)
        self.size += 1

    def leave(self, waiter: Waiter) -> bool:
        """Step out of the line; False if it is not in it any more."""
        try:
            self._lines[waiter.priority].remove(waiter)
        except ValueError:
            return False
        self.size -= 1
        return True

    def of(self, priority: Priority) -> Iterator[Waiter]:
        """Those of that class in their order. Nobody may come or leave meanwhile."""
        return iter(self._lines[priority])

    def is_overtaken_by(self, priority: Priority, deployment: str) -> bool:
        """Whether somebody who goes first waits for what a newcomer finds there."""
        return any(
            waiter.competes({deployment})
            for each, line in self._lines.items()
            if each < priority
            for waiter in line
        )

    def overdue(self, now: float) -> list[Waiter]:
        """Those whose time is over; they are left in the line."""
        return [w for line in self._lines.values() for w in line if w.deadline <= now]

    @property
    def next_deadline(self) -> float | None:
        return min((w.deadline for line in self._lines.values() for w in line), default=None)


def _has_begun(waiter: Waiter) -> bool:
    return waiter.begun
