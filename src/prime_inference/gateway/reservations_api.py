"""`GET /reservations`: a team's own reserved capacity, on the public port."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from prime_inference.accounts.live import LiveDirectory
from prime_inference.domain.models import Deployment
from prime_inference.domain.money import usd_text
from prime_inference.domain.reservations import Allotment, Reservation, State, allot
from prime_inference.gateway.account_api import MICRO, Endpoint, iso
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
    ) -> None:
        self._auth = auth
        self._directory = directory
        self._fleet = fleet

    def routes(self, base: str) -> Mapping[str, dict[str, Endpoint]]:
        return {f"{base}/reservations": {"GET": self._list}}

    async def _list(self, request: Request, reply: Reply, request_id: str) -> None:
        tenant = self._auth.authenticate(request).tenant
        now = time.time()
        known = self._directory.current.reservations
        parts = allot([each for each in known if each.state(now) is State.ACTIVE], self._fleet())
        own = [reservation_object(each, now, parts) for each in known if each.tenant == tenant]
        body = msgspec.json.encode({"reservations": own, "total_count": len(own)})
        reply.send(200, [JSON_TYPE, (b"x-request-id", request_id.encode())], body)


def reservation_object(
    reservation: Reservation, now: float, allotment: Allotment
) -> dict[str, object]:
    """A reservation as JSON; `on` says how many slots each deployment has for it now."""
    ends_at = reservation.ends_at
    return {
        "id": reservation.id,
        "tenant": reservation.tenant,
        "model": reservation.model,
        "slots": reservation.slots,
        "datacenters": sorted(reservation.datacenters),
        "state": str(reservation.state(now)),
        "from": iso(int(reservation.starts_at * MICRO)),
        "to": None if ends_at is None else iso(int(ends_at * MICRO)),
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
