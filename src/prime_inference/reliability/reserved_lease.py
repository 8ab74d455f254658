"""A replica's side of a lease of a reservation's slots (docs/reservations.md, "Slots").

It holds what it needs and a quarter more. The rest of the reservation is with the store:
whoever needs a slot has it after one ask, and asks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from prime_inference.ports.coordination import BlockAsk, BlockGrant
from prime_inference.reliability.block_lease import RENEW_RESERVED_AT, BlockLease
from prime_inference.reliability.settings import LeaseSettings

OWED_GAP_S = 0.1  # slots are on their way back: who waits for one has it soon after


class ReservedLease(BlockLease):
    """The part of a reservation's slots on one deployment that one replica may fill."""

    def __init__(
        self,
        pool: str,
        reservation: str,
        holder: str,
        slots: int,
        deployment_slots: int,
        settings: LeaseSettings,
        sequences: Iterator[int],
    ) -> None:
        super().__init__(pool, holder, slots, settings, sequences)
        self.reservation = reservation
        self.deployment_slots = deployment_slots
        self.in_flight = 0
        self.waiting = 0  # requests that wait for a slot of it
        self.offered = True  # its deployment takes requests; else all may be lent, to probes say
        self.owed = 0
        self._told = 0  # what the store knew to be needed when it last answered
        self._kept = 0
        self._counted = 0  # in flight, as the store knows it

    @property
    def need(self) -> int:
        return self.in_flight + self.waiting

    @property
    def at_rest(self) -> bool:
        """Whether it holds nothing, as far as anybody knows."""
        return not (self.asking or self.granted or self.in_flight or self._counted)

    def to_come(self, now: float, newcomers: int = 0) -> int:
        """Slots that are worth waiting for: they are lent, or the store was not asked yet."""
        if self.closing:
            return 0
        if not self.ready:
            return self.capacity
        if now >= self.valid_until:
            return 0
        rest = self.capacity - self.granted
        if not self._contended:
            return rest
        untold = max(0, self.need + newcomers - self._told) if self.owed else 0
        return min(rest, self.owed + untold)

    def needs_more(self, now: float) -> None:
        """A request waits."""
        self.demand(self.need, 0, now)
        self._ask_soon(now)

    def ask(self, in_flight: int, now: float, *, rest: bool = False) -> BlockAsk:
        """The next ask. It never rests: with nobody coming it holds nothing."""
        ask = super().ask(in_flight, now)
        self._counted = in_flight
        return replace(
            ask,
            capacity=self.deployment_slots,
            reservation=self.reservation,
            reserved=self.capacity,
            kept=self._kept if self.offered else 0,
        )

    def accept(self, ask: BlockAsk, grant: BlockGrant, sent_at: float, now: float) -> None:
        if not self.awaits(ask):
            return
        super().accept(ask, grant, sent_at, now)
        self.owed = grant.owed
        self._told = ask.interactive
        self._contended = grant.granted < ask.interactive
        if self.need > max(self._told, self.granted) or self.owed:
            self._ask_soon(now)

    def _ask_soon(self, now: float, *, for_batch: bool = False) -> None:
        if self.owed:
            self._ask_at = min(self._ask_at, max(now, self._sent_at + OWED_GAP_S))
        elif self._contended:
            super()._ask_soon(now)
        else:
            self._ask_at = min(self._ask_at, now)

    @property
    def _renew_at(self) -> float:
        return RENEW_RESERVED_AT

    def _safe_capacity(self) -> int:
        """Where there are too few for all, whoever has none spills."""
        return max(self.granted, self.kept)

    def _keep(self) -> int:
        """One slot, as is kept back from others anyway; none that others need for a probe."""
        return min(1, super()._keep()) if self.offered else 0

    def _reserve(self) -> int:
        return 0  # the store keeps them

    def _wants(self, now: float) -> tuple[int, int]:
        """What is needed now, and what is liked besides; what is kept from others is more."""
        self._kept, _ = super()._wants(now)
        if self.closing:
            return 0, 0
        need = min(self.capacity, self.need)
        besides = int(self.in_flight * self._settings.headroom)
        return need, min(besides, self.capacity - need)
