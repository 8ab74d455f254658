"""The account of one generation while it runs, and the moment it becomes a fact."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.billing.rating import usage_event
from prime_inference.domain.generation import Generation
from prime_inference.domain.prices import Price
from prime_inference.domain.reservations import Reservation
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.outbox import Outbox


class Bill:
    """Settled once: before the last bytes of a whole answer, or when the request is over."""

    __slots__ = ("_outbox", "_reserved", "event", "price")

    def __init__(
        self, outbox: Outbox, price: Price | None, reserved: Sequence[Reservation] = ()
    ) -> None:
        self._outbox = outbox
        self._reserved = reserved
        self.price = price
        self.event: UsageEvent | None = None

    def settle(self, generation: Generation) -> UsageEvent:
        """Commit the event to the outbox; the first generation that it is given stands.

        Raises OutboxUnavailable, and then nothing is settled.
        """
        if self.event is None:
            event = self.rate(generation)
            self._outbox.append((event,))
            self.event = event
        return self.event

    def rate(self, generation: Generation) -> UsageEvent:
        """What `settle` would commit."""
        discount = 0
        for reservation in self._reserved:
            if reservation.pool == generation.pool:
                discount = reservation.token_discount
        return usage_event(generation, self.price, discount=discount)
