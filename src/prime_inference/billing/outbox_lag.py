"""How long usage events have been waiting for the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prime_inference.ports.clock import Clock
from prime_inference.ports.outbox import Outbox

LOOK_S = 1.0  # a person waits longer for a metric to be scraped
STUCK_S = 15.0  # a busy SQLite file is waited for 10 s, and a database that restarts takes seconds


class OutboxLag:
    """Looks where the shipper is, which may be a thread, a process or gone."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox = outbox
        self._clock = clock
        self._mark = 0  # a place in the outbox
        self._marked_at: float | None = None  # when that was its end; None: nothing waited

    def look(self) -> None:
        """What is not confirmed up to the mark was there when it was set."""
        confirmed, end = self._outbox.places()
        if confirmed >= end:
            self._marked_at = None
        elif self._marked_at is None or confirmed >= self._mark:
            self._mark, self._marked_at = end, self._clock()

    @property
    def seconds(self) -> float:
        """At least so long the oldest event has been waiting; 0 if none is."""
        return 0.0 if self._marked_at is None else self._clock() - self._marked_at

    @property
    def failing(self) -> Mapping[str, str]:
        """As `reliability.background.Background.failing`: the shipper, if it does not get on."""
        if self.seconds < STUCK_S:
            return {}
        waited = f"{self.seconds:.0f} s"
        return {"shipper": f"usage has been waiting for the ledger for {waited}; the log says why"}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)
