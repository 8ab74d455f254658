"""From the outbox to the ledger: at least once; the ledger makes it exactly once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import EventsRefused, Ledger, LedgerUnavailable
from prime_inference.ports.outbox import OutboxReader

log = logging.getLogger(__name__)

BATCH = 500  # events in a transaction: its cost per event no longer falls beyond
PAUSE_S = 0.25  # between looks at an empty outbox: a person does not notice it on a usage page
RETRY_S = 1.0  # a database that restarts takes seconds
MICRO = 1_000_000


class Shipper:
    """`run` is for a thread of its own; `source` names the replica in the ledger."""

    def __init__(
        self,
        outbox: OutboxReader,
        ledger: Ledger,
        source: str,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._outbox = outbox
        self._ledger = ledger
        self._source = source
        self._wall_clock = wall_clock
        self._stop = threading.Event()
        self.failing = False  # the last try did not reach the ledger

    def ship_once(self) -> int:
        """Ship one batch; how many events it had. Raises LedgerUnavailable."""
        found = self._outbox.oldest(BATCH)
        if found:
            self._outbox.sync()
            now = int(self._wall_clock() * MICRO)
            self._apply([event for _, event in found], now)
            self._outbox.delete(upto=found[-1][0])
        return len(found)

    def _apply(self, events: Sequence[UsageEvent], now: int) -> None:
        """Apply them all; one that can never be is set aside, and holds up no other."""
        try:
            self._ledger.apply(self._source, events, now)
        except EventsRefused as error:
            if len(events) == 1:
                log.error("the ledger refuses a usage event: %s", error)
                self._outbox.set_aside(events[0])
                return
            middle = len(events) // 2
            self._apply(events[:middle], now)
            self._apply(events[middle:], now)

    def stop(self) -> None:
        """Have `run` ship what is there, if the ledger answers, and end."""
        self._stop.set()

    def run(self) -> None:
        """Ship until it is stopped. What escapes is a defect: it may be called again after that."""
        while not self._stop.is_set():
            self._stop.wait(self._round())
        self._round()

    def _round(self) -> float:
        """Ship all there is; seconds until there may be more."""
        try:
            while self.ship_once() == BATCH:
                pass
        except LedgerUnavailable as error:  # the events stay where they are
            if not self.failing:
                log.warning("usage waits in the outbox: %s", error)
            self.failing = True
            return RETRY_S
        self.failing = False
        return PAUSE_S
