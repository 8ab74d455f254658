"""Tells the guard whose slots are whose, as reservations begin and end and the fleet changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from prime_inference.accounts.live import LiveDirectory
from prime_inference.domain.models import Deployment
from prime_inference.domain.reservations import Allotment, State, allot
from prime_inference.reliability.guard import Guard

LOOK_S = 1.0  # a change reaches a replica in 2 s (the directory's poll); nobody notices one more


class ReservationWatch:
    """Looks every second; with no reservation it looks at an empty tuple."""

    def __init__(
        self,
        directory: LiveDirectory,
        fleet: Callable[[], Sequence[Deployment]],
        guard: Guard,
        wall_clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._fleet = fleet
        self._guard = guard
        self._now = wall_clock
        self._known: Allotment = {}

    def look(self) -> None:
        known = self._directory.current.reservations
        if not known and not self._known and self._guard.reserved.empty:
            return
        now = self._now()
        active = [each for each in known if each.state(now) is State.ACTIVE]
        self._known = allot(active, self._fleet())
        self._guard.reserved.allot(self._known, [each.id for each in active])

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_S)
