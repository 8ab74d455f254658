"""A bounded queue for slots of one model: joined only if a slot is expected soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prime_inference.reliability.slots import Priority, Refusal, Slot


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue. `deliver` is called exactly once, unless it leaves before."""

    priority: Priority
    deadline: float
    deliver: Callable[[Slot | Refusal], None]


class WaitingLine:
    """Interactive requests before batch, first come first served within a class."""

    __slots__ = ("_lines", "size")

    def __init__(self) -> None:
        self._lines: dict[Priority, deque[Waiter]] = {each: deque() for each in Priority}
        self.size = 0  # looked at with every slot that is given back

    def ahead_of(self, priority: Priority) -> int:
        """Waiters that would be served before a newcomer of that priority."""
        return sum(len(line) for each, line in self._lines.items() if each <= priority)

    def join(self, waiter: Waiter) -> None:
        self._lines[waiter.priority].append(waiter)
        self.size += 1

    def leave(self, waiter: Waiter) -> bool:
        """Step out of the line; False if it is not in it any more."""
        try:
            self._lines[waiter.priority].remove(waiter)
        except ValueError:
            return False
        self.size -= 1
        return True

    def first(self, priority: Priority) -> Waiter | None:
        """The next of that class, left in the line."""
        line = self._lines[priority]
        return line[0] if line else None

    def overdue(self, now: float) -> list[Waiter]:
        """Take out those whose time is over."""
        late = [w for line in self._lines.values() for w in line if w.deadline <= now]
        for waiter in late:
            self.leave(waiter)
        return late

    @property
    def next_deadline(self) -> float | None:
        return min((w.deadline for line in self._lines.values() for w in line), default=None)
