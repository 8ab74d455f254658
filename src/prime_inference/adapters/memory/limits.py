"""Limits of one process."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.billing.limit_table import LimitTable
from prime_inference.ports.clock import Clock
from prime_inference.ports.limits import HoldAsk, HoldGrant, LimitState, Settlement

KEEP_SETTLED_S = 5.0  # calls do not get lost here: only a slip of our own repeats one


class MemoryLimits:
    """Implements `ports.limits.LimitStore`. Never unavailable."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table = LimitTable(KEEP_SETTLED_S)

    async def reserve(self, ask: HoldAsk) -> HoldGrant:
        return self._table.reserve(ask, self._clock())

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Sequence[LimitState]]:
        return [self._table.settle(ask, used, self._clock()) for ask, used in settlements]

    async def renew(self, asks: Sequence[HoldAsk]) -> None:
        for ask in asks:
            self._table.renew(ask, self._clock())

    async def life(self) -> int:
        return 0  # it ends with its process

    async def close(self) -> None:
        """Nothing to close."""
