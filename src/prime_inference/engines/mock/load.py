"""How many requests the mock engine works on at a time, and the most there have been."""

from __future__ import annotations

import asyncio

SETTLE_SECONDS = 0.02
"""A process that was frozen finds requests whose clients have left meanwhile, and learns of it
only after it has begun them: what is gone within this time was never in flight."""


class Load:
    """Requests in flight, counted from their arrival to the end of their answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.in_flight = 0
        self.most = 0
        self._looking = False

    def begin(self) -> None:
        self.in_flight += 1
        if self.in_flight > self.most and not self._looking:
            self._looking = True
            self._loop.call_later(SETTLE_SECONDS, self._look)

    def end(self) -> None:
        self.in_flight -= 1

    def reset(self) -> None:
        """The most there have been: counted from now on."""
        self.most = self.in_flight

    def _look(self) -> None:
        self._looking = False
        self.most = max(self.most, self.in_flight)
