"""`GET /reservations`: a team's own reserved capacity, on the public port."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from prime_inference.accounts.live import LiveDirectory
from prime_inference.domain.models import Deployment
from prime_inference.domain.moments import iso
from prime_inference.domain.money import usd_text
from prime_inference.domain.reservations import (
    Allotment,
    Reservation,
    Speed,
    State,
    allot,
    carried,
)
from prime_inference.gateway.account_api import Endpoint
from prime_inference.gateway.auth import Authenticator
from prime_inference.wire.http import Reply, Request
from prime_inference.wire.openai.errors import JSON_TYPE


class ReservationsApi:
    """What the account, or the team that the key bills, has reserved."""

    def __init__(
        self,
        auth: Authenticator,
        directory: LiveDirectory,
        fleet: Callable[[], Sequence[Deployment]],
        speed: Speed,
    ) -> None:
        self._auth = auth
        self._directory = directory
        self._fleet = fleet
        self._speed = speed

    def routes(self, base: str) -> Mapping[str, dict[str, Endpoint]]:
        return {f"{base}/reservations": {"GET": self._list}}

    async def _list(self, request: Request, reply: Reply, request_id: str) -> None:
        tenant = self._auth.authenticate(request).tenant
        now = time.time()
        known = self._directory.current.reservations
        fleet = self._fleet()
        parts = allot([each for each in known if each.state(now) is State.ACTIVE], fleet)
        own = [
            reservation_object(each, now, parts, carried(each, parts, fleet, self._speed))
            for each in known
            if each.tenant == tenant
        ]
        body = msgspec.json.encode({"reservations": own, "total_count": len(own)})
        reply.send(200, [JSON_TYPE, (b"x-request-id", request_id.encode())], body)


def reservation_object(
    reservation: Reservation, now: float, allotment: Allotment, carries: float | None
) -> dict[str, object]:
    """A reservation as JSON; `on` says how many slots each deployment has for it now.

    `carries` is the output per second of those: told while one is active that names its own.
    """
    ends_at = reservation.ends_at
    bounded = reservation.tokens_per_second is not None and reservation.state(now) is State.ACTIVE
    return {
        "id": reservation.id,
        "tenant": reservation.tenant,
        "model": reservation.model,
        "slots": reservation.slots,
        "tokens_per_second": reservation.tokens_per_second,
        "carries_tokens_per_second": round(carries, 1) if bounded and carries is not None else None,
        "datacenters": sorted(reservation.datacenters),
        "state": str(reservation.state(now)),
        "from": iso(reservation.starts_at),
        "to": None if ends_at is None else iso(ends_at),
        "price_usd": usd_text(reservation.price),
        "period": str(reservation.period),
        "spill": reservation.spill,
        "token_discount_percent": reservation.token_discount / 100,
        "on": {
            name: parts[reservation.id]
            for name, parts in allotment.items()
            if reservation.id in parts
        },
    }
