"""One timer for thousands of paced streams."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

TICK = 0.001  # seconds; streams due within one tick are served by one wake-up


class Pacer:
    """Calls back at given times, all that fall into one tick together."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ticks: list[int] = []
        self._due: dict[int, list[Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call at loop time `when`, at most one tick late."""
        tick = int(when / TICK) + 1
        due = self._due.get(tick)
        if due is not None:
            due.append(call)
            return
        self._due[tick] = [call]
        heapq.heappush(self._ticks, tick)
        if self._timer is None or tick < self._armed:
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self._ticks[0]
        self._timer = self._loop.call_at(self._armed * TICK, self._run)

    def _run(self) -> None:
        self._timer = None
        last = max(int(self._loop.time() / TICK), self._armed)  # a call may arm a later one
        while self._ticks and self._ticks[0] <= last:
            for call in self._due.pop(heapq.heappop(self._ticks)):
                call()
        if self._ticks and self._timer is None:
            self._arm()

    def stop(self) -> None:
        """Forget every call."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ticks.clear()
        self._due.clear()
