"""The longest time in which nothing at all is in flight: AgentX's cap on system idleness.

Once no request has been in flight for so long, every turn that waits for its time comes earlier
by the same amount, so that the next one is due now: order and spacing stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct


class _Timer(Struct, eq=False):
    """A turn that waits; seconds since the point began."""

    due: float
    deadline: float
    come: asyncio.Future[None]
    handle: asyncio.TimerHandle


class IdleCap:
    """Timers of all turns of a point, and what is in flight. `seconds` None: no cap."""

    def __init__(self, seconds: float | None, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._in_flight = 0
        self._timers: set[_Timer] = set()
        self._check: asyncio.TimerHandle | None = None
        self.skipped = 0.0  # seconds, in all

    def began(self) -> None:
        """A request is sent."""
        self._in_flight += 1
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def ended(self) -> None:
        """Its answer has ended, however."""
        self._in_flight -= 1
        self._watch()

    async def until(self, due: float, deadline: float) -> float:
        """Wait until then, or less, but not past the deadline; when it was due after all."""
        if self._seconds is None and due >= deadline:
            return due  # nothing can bring it forward
        come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = _Timer(due, deadline, come, self._handle(due, deadline, come))
        self._timers.add(timer)
        self._watch()
        try:
            await come
        finally:
            timer.handle.cancel()
            self._timers.discard(timer)
            if self._check is not None and not self._timers:
                self._check.cancel()
                self._check = None
        return timer.due

    def _handle(
        self, due: float, deadline: float, come: asyncio.Future[None]
    ) -> asyncio.TimerHandle:
        seconds = min(due, deadline) - self._now()
        return asyncio.get_running_loop().call_later(seconds, _come, come)

    def _watch(self) -> None:
        """Look again when the cap has run out, unless a request is sent before."""
        if self._seconds is not None and not self._in_flight and self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(self._seconds, self._skip)

    def _skip(self) -> None:
        self._check = None
        waiting = [timer for timer in self._timers if not timer.come.done()]
        if not waiting or len(waiting) < len(self._timers):
            return  # one is on its way
        by = min(timer.due for timer in waiting) - self._now()
        if by <= 0:
            return
        self.skipped += by
        for timer in waiting:
            timer.due -= by
            timer.handle.cancel()
            timer.handle = self._handle(timer.due, timer.deadline, timer.come)


def _come(come: asyncio.Future[None]) -> None:
    if not come.done():
        come.set_result(None)
