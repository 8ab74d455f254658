"""Reservations as one gateway sees them: whose slots are in use, and what is left to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from prime_inference.domain.reservations import Reservation
from prime_inference.reliability.guard import Guard


class ReservationView(Struct, frozen=True):
    """Of one that has slots. `in_flight` and `waiting` are this gateway's own.

    `tokens_left` is what the bucket of its output held when this gateway asked last, over all
    gateways; None: it has not asked, or there is no bucket.
    """

    id: str
    tenant: str
    model: str
    slots: int
    in_flight: int
    waiting: int
    tokens_per_second: int | None
    tokens_left: int | None


def reservation_views(
    reservations: Iterable[Reservation], guard: Guard, output_left: Mapping[str, int]
) -> list[ReservationView]:
    """`output_left` is by pool."""
    parts = guard.reserved.view()
    views = []
    for each in reservations:
        own = [part for part in parts if part.reservation == each.id]
        if own:
            views.append(
                ReservationView(
                    each.id,
                    each.tenant,
                    each.model,
                    sum(part.slots for part in own),
                    sum(part.in_flight for part in own),
                    sum(part.waiting for part in own),
                    each.tokens_per_second,
                    output_left.get(each.pool),
                )
            )
    return views
