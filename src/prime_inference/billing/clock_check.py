"""This machine's clock beside the database's: days of budgets, prices and bills go by it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from prime_inference.ports.ledger import LedgerUnavailable

log = logging.getLogger(__name__)

OFF_S = 5.0  # clocks of a fleet with NTP differ by milliseconds
LOOK_S = 10.0  # a clock that is set is seen before anybody looks at a bill


class ClockCheck:
    """Warns of a difference, once. Both clocks are in seconds since the epoch."""

    def __init__(self, database_now: Callable[[], float], wall_clock: Callable[[], float]) -> None:
        self._database_now = database_now
        self._wall_clock = wall_clock
        self.seconds = 0.0  # that this machine's is ahead

    def look(self) -> None:
        """Raises LedgerUnavailable."""
        before = self._wall_clock()
        theirs = self._database_now()
        known, self.seconds = self.seconds, (before + self._wall_clock()) / 2 - theirs
        if abs(known) <= OFF_S < abs(self.seconds):
            log.warning("the clocks here and at the database differ by %.0f s", abs(self.seconds))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(LedgerUnavailable):  # the shipper says so
                await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)
