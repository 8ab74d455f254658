"""Reservations in the admin API: made, listed, shown, ended (docs/reservations.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from prime_inference.billing.price_check import require_usual_slot_price
from prime_inference.control.account_operations import AccountOperations
from prime_inference.control.calls import Call, Routes, basis_points, moment_of, new_id
from prime_inference.control.names import Names as AllNames
from prime_inference.control.requests import Id, Names, Usd
from prime_inference.domain.errors import BudgetExceeded, InvalidRequest, ModelNotFound
from prime_inference.domain.limits import MOST_AMOUNT
from prime_inference.domain.models import Deployment
from prime_inference.domain.money import nanodollars, usd_text
from prime_inference.domain.reservations import (
    MOST_TOKENS_PER_SECOND,
    Allotment,
    Period,
    Reservation,
    Speed,
    State,
    allot,
    carried,
    missing,
)
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.gateway.reservations_api import reservation_object
from prime_inference.ports.accounts import Accounts, CannotPay, UnknownAccount

Fleet = Callable[[], Sequence[Deployment]]


class NewReservation(Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Times as ISO 8601; money as decimal text in dollars."""

    tenant: Id
    model: Id
    slots: Annotated[int, Meta(ge=1, le=1_000_000)]
    price_usd: Usd
    period: Period = Period.HOUR
    datacenters: Names = []  # empty: any
    from_: str | None = None  # None: now
    to: str | None = None  # None: until it is ended
    spill: bool = True
    token_discount_percent: Annotated[float, Meta(ge=0, le=100)] = 100.0
    tokens_per_second: Annotated[int, Meta(ge=1, le=MOST_TOKENS_PER_SECOND)] | None = None
    confirm: bool = False  # make it although its price looks wrong


class End(Struct, forbid_unknown_fields=True):
    at: str | None = None  # None: now


class ReservationOperations(AccountOperations):
    """Over the accounts and the fleet that this gateway serves; `speed` is that of its slots."""

    def __init__(
        self,
        accounts: Accounts,
        names: Callable[[], AllNames],
        fleet: Fleet,
        speed: Speed,
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__(accounts, names, wall_clock)
        self._fleet = fleet
        self._speed = speed

    def routes(self) -> Routes:
        return {
            ("GET", "reservations"): self.list,
            ("POST", "reservations"): self.create,
            ("GET", "reservations/([^/]+)"): self.show,
            ("POST", "reservations/([^/]+)/end"): self.end,
        }

    def list(self, call: Call) -> object:
        tenant = call.query.get("tenant")
        found = [each for each in self._all() if tenant in (None, each.tenant)]
        return {"reservations": [self._object(each) for each in found], "total_count": len(found)}

    def show(self, call: Call) -> object:
        return self._object(self._find(call.parts[0]))

    def create(self, call: Call) -> object:
        wanted = call.decode(NewReservation)
        self._require_names(wanted)
        now = self._now()
        starts_at = now if wanted.from_ is None else moment_of(wanted.from_, "from")
        ends_at = None if wanted.to is None else moment_of(wanted.to, "to")
        if wanted.from_ is not None and starts_at < now:
            raise InvalidRequest("A reservation cannot begin in the past.", param="from")
        if ends_at is not None and ends_at <= starts_at:
            raise InvalidRequest("A reservation ends after it begins.", param="to")
        price = nanodollars(wanted.price_usd)
        if price > MOST_AMOUNT:
            raise InvalidRequest(
                f"A period costs at most ${usd_text(MOST_AMOUNT)}.", param="price_usd"
            )
        reservation = Reservation(
            id=new_id("res"),
            tenant=wanted.tenant,
            model=wanted.model,
            slots=wanted.slots,
            starts_at=starts_at,
            price=price,
            period=wanted.period,
            created_at=now,
            datacenters=frozenset(wanted.datacenters),
            ends_at=ends_at,
            spill=wanted.spill,
            token_discount=basis_points(wanted.token_discount_percent, "token_discount_percent"),
            tokens_per_second=wanted.tokens_per_second,
        )
        self._require_fit(reservation, self._all())
        if not wanted.confirm:
            require_usual_slot_price(price, wanted.slots, wanted.period)
        answer = self._object(reservation)
        try:
            self._accounts.add_reservation(
                reservation, call.actor, partial(self._require_fit, reservation)
            )
        except CannotPay as error:
            raise BudgetExceeded(
                f"A period costs ${usd_text(price)}; the wallet has ${usd_text(error.left)} beside"
                " the first periods of other reservations."
            ) from error
        return answer

    def end(self, call: Call) -> object:
        """Now, or at a time to come. A period that has begun is paid."""
        at = call.decode(End).at
        now = self._now()
        ends_at = now if at is None else moment_of(at, "at")
        if ends_at < now:
            raise InvalidRequest("A reservation cannot end in the past.", param="at")
        reservation = self._find(call.parts[0])
        if reservation.state(now) is State.ENDED:
            raise InvalidRequest(f"{reservation.id} has ended.")
        if reservation.ends_at is not None and ends_at > reservation.ends_at:
            raise InvalidRequest(
                f"{reservation.id} ends earlier than that; make another for the time after it.",
                param="at",
            )
        answer = self._object(replace(reservation, ends_at=ends_at))
        self._accounts.end_reservation(reservation.id, ends_at, call.actor, now)
        return answer

    def _require_names(self, wanted: NewReservation) -> None:
        """Raises NotFound, InvalidRequest, with the nearest; its slots are of what there is now."""
        self._names().require_tenant(wanted.tenant)
        fleet = self._fleet()
        models = {each.model for each in fleet}
        if wanted.model not in models:
            raise ModelNotFound(
                f"No deployment serves {wanted.model}.{did_you_mean(wanted.model, models)}",
                param="model",
            )
        datacenters = {each.datacenter for each in fleet}
        for name in wanted.datacenters:
            if name not in datacenters:
                raise InvalidRequest(
                    f"There is no datacenter {name}.{did_you_mean(name, datacenters)}",
                    param="datacenters",
                )

    def _require_fit(self, reservation: Reservation, others: Sequence[Reservation]) -> None:
        """Raises InvalidRequest if the fleet has not its slots, or they carry too little."""
        self._require_speed(reservation, self._require_room(reservation, others))

    def _require_room(self, reservation: Reservation, others: Sequence[Reservation]) -> Allotment:
        """What its slots would be.

        Raises InvalidRequest if the fleet has not as many slots beside the others' of the time.

        Older reservations that overlap it are taken together, also where they do not overlap
        each other: rather one refused that would fit than one sold that does not.
        """
        beside = [each for each in others if each.overlaps(reservation)]
        allotment = allot([*beside, reservation], self._fleet())
        lacking = missing(reservation, allotment)
        if lacking:
            where = f" in {', '.join(sorted(reservation.datacenters))}"
            raise InvalidRequest(
                f"{reservation.slots - lacking} slots of {reservation.model}"
                f"{where if reservation.datacenters else ''} can be reserved in that time,"
                f" not {reservation.slots}.",
                param="slots",
                details={"free": reservation.slots - lacking},
            )
        return allotment

    def _require_speed(self, reservation: Reservation, allotment: Allotment) -> None:
        """Raises InvalidRequest if its slots are not known to carry its tokens per second."""
        wanted = reservation.tokens_per_second
        if wanted is None:
            return
        known = carried(reservation, allotment, self._fleet(), self._speed)
        if known is None:
            raise InvalidRequest(
                "Nobody knows yet how many tokens per second those slots carry: give each"
                " deployment its 'tokens_per_second' in the fleet file, or ask it something first.",
                param="tokens_per_second",
            )
        if wanted > known:
            enough = math.ceil(wanted * reservation.slots / known)
            raise InvalidRequest(
                f"{reservation.slots} slots carry {known:.1f} output tokens per second, not"
                f" {wanted}: that takes {enough}.",
                param="tokens_per_second",
                details={"carries_tokens_per_second": round(known, 1), "slots": enough},
            )

    def _find(self, reservation_id: str) -> Reservation:
        for each in self._all():
            if each.id == reservation_id:
                return each
        raise UnknownAccount(f"there is no reservation {reservation_id}")

    def _all(self) -> Sequence[Reservation]:
        found: Sequence[Reservation] = self._accounts.load().reservations
        return found

    def _object(self, reservation: Reservation) -> dict[str, object]:
        """As it is with that one, whether or not it is written yet."""
        now = self._now()
        known = {**{each.id: each for each in self._all()}, reservation.id: reservation}
        active = [each for each in known.values() if each.state(now) is State.ACTIVE]
        fleet = self._fleet()
        allotment = allot(active, fleet)
        return reservation_object(
            reservation, now, allotment, carried(reservation, allotment, fleet, self._speed)
        )
