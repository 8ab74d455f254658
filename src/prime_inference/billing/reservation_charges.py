"""What reservations cost: one transfer for each period, as soon as it has begun.

Every replica does this. The ledger takes each period once, so that it costs nothing but a
look; one replica is enough, and whoever was down catches up. What is charged stays charged, so a
clock is believed only if it has been ahead for long, and never before the database's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable

from prime_inference.domain.reservations import Reservation, period_start, periods_due
from prime_inference.ports.accounts import AccountsUnavailable
from prime_inference.ports.clock import Clock
from prime_inference.ports.ledger import (
    REVENUE,
    Ledger,
    LedgerUnavailable,
    Transfer,
    TransferRefused,
    tenant_account,
)

log = logging.getLogger(__name__)

BELIEVED_S = 600.0  # a clock that is set right stays so; one that slips is set back in minutes
LOOK_S = 2.0  # as the directory: looking costs nothing while nothing is due
MICRO = 1_000_000


def charge_of(reservation: Reservation, number: int) -> Transfer:
    """The transfer of a period. Its reference makes a repetition harmless."""
    begins = period_start(reservation, number)
    return Transfer(
        reservation.tenant,
        f"{reservation.id}/{number}",
        "reservation",
        tenant_account(reservation.tenant),
        REVENUE,
        reservation.price,
        round(begins * MICRO),
        about=reservation.id,
        memo=f"{_what(reservation)} of {reservation.model} for a {reservation.period}",
    )


def _what(reservation: Reservation) -> str:
    rate = reservation.tokens_per_second
    return f"{reservation.slots} slots{'' if rate is None else f', {rate} tokens/s'}"


class HeldBackClock:
    """A wall clock of which a step ahead is believed after `BELIEVED_S`, one back at once."""

    def __init__(self, wall_clock: Callable[[], float], clock: Clock) -> None:
        self._wall_clock = wall_clock
        self._clock = clock
        self._seen: deque[tuple[float, float]] = deque()  # when, and how far ahead of `clock`

    def __call__(self) -> float:
        now = self._clock()
        ahead = self._wall_clock() - now
        while self._seen and self._seen[-1][1] >= ahead:
            self._seen.pop()  # no longer the least, nor will it be
        self._seen.append((now, ahead))
        while self._seen[0][0] < now - BELIEVED_S:
            self._seen.popleft()
        return now + self._seen[0][1]


class ReservationCharges:
    """Charges every period that has begun, by `now` and by the database's clock if it is given;
    both in seconds since the epoch."""

    def __init__(
        self,
        ledger: Ledger,
        reservations: Callable[[], Iterable[Reservation]],
        now: Callable[[], float],
        charged: Callable[[Transfer], None] = lambda transfer: None,
        database_now: Callable[[], float] | None = None,
    ) -> None:
        self._database_now = database_now or now
        self._charged = charged
        self._ledger = ledger
        self._reservations = reservations
        self._now = now
        self._paid: dict[str, int] = {}  # periods that the ledger is known to have

    def charge(self) -> int:
        """Write what is due and not there; how many transfers. Raises LedgerUnavailable."""
        written = 0
        now = self._now()
        for reservation in self._reservations():
            due = periods_due(reservation, now)
            if due <= self._paid.get(reservation.id, 0):
                continue
            due = periods_due(reservation, min(now, self._database_now()))
            paid = self._ledger.periods_paid(reservation.tenant, reservation.id)
            for number in range(paid, due):
                transfer = charge_of(reservation, number)
                try:
                    fresh = self._ledger.transfer(transfer)
                except TransferRefused as error:  # the others' periods are charged all the same
                    log.error("%s is not charged: %s", transfer.reference, error)
                    break
                if fresh:
                    self._charged(transfer)
                    written += 1
            self._paid[reservation.id] = max(paid, due)
        return written

    async def run(self) -> None:
        """Charge until cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.charge)
            except (LedgerUnavailable, AccountsUnavailable) as error:
                log.warning("reservations are charged later: %s", error)
            await asyncio.sleep(LOOK_S)
