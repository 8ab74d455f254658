"""What a campaign has to notice: each is planted in the process that forks the workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.billing import rating, reservation_charges
from prime_inference.billing.bill import Bill
from prime_inference.billing.holds import Holds
from prime_inference.billing.limit_table import LimitTable
from prime_inference.billing.shipper import Shipper
from prime_inference.domain.generation import Generation
from prime_inference.domain.pools import FLEX, SERVERLESS
from prime_inference.domain.reservations import Reservation
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.gateway.operations import Operation
from prime_inference.ports.ledger import Transfer
from prime_inference.ports.limits import HoldAsk, LimitState

from .traffic import RESERVATION

Patch = pytest.MonkeyPatch


def bills_flex_in_full(patch: Patch) -> None:
    patch.setattr(rating, "FLEX", "no pool")


def bills_reserved_slots_in_full(patch: Patch) -> None:
    patch.setattr(Bill, "rate", lambda self, generation: rating.usage_event(generation, self.price))


def bills_all_to_one_pool(patch: Patch) -> None:
    rate = Bill.rate

    def serverless(self: Bill, generation: Generation) -> UsageEvent:
        return structs.replace(rate(self, generation), pool=SERVERLESS)

    patch.setattr(Bill, "rate", serverless)


def gives_flex_reserved_slots(patch: Patch) -> None:
    patch.setattr(Operation, "flex", property(lambda self: False))


def settles_flex_holds_twice(patch: Patch) -> None:
    settle, settle_hold = LimitTable.settle, Holds.settle
    flex: set[str] = set()

    def noted(self: Holds, hold: Any, **used: Any) -> None:
        if used["pool"] == FLEX:
            flex.add(hold.ask.member)
        settle_hold(self, hold, **used)

    def twice(
        self: LimitTable, ask: HoldAsk, used: Sequence[int], now: float
    ) -> tuple[LimitState, ...]:
        states = settle(self, ask, used, now)
        if ask.member in flex:
            self._settled.discard(ask.member)
            states = settle(self, ask, used, now)
        return states

    patch.setattr(Holds, "settle", noted)
    patch.setattr(LimitTable, "settle", twice)


def settles_what_was_held(patch: Patch) -> None:
    settle = Holds.settle

    def held(self: Holds, hold: Any, **used: Any) -> None:
        most = max(each.amount for each in hold.ask.demands if each.kind.is_budget)
        settle(self, hold, **{**used, "cost": most})

    patch.setattr(Holds, "settle", held)


def draws_what_others_slots_gave(patch: Patch) -> None:
    settle = Holds.settle

    def all_of_it(self: Holds, hold: Any, **used: Any) -> None:
        settle(self, hold, **{**used, "pool": RESERVATION.pool})

    patch.setattr(Holds, "settle", all_of_it)


def charges_periods_anew(patch: Patch) -> None:
    charge_of = reservation_charges.charge_of

    def another(reservation: Reservation, number: int) -> Transfer:
        first = charge_of(reservation, number)
        return Transfer(
            first.tenant, f"{first.reference}-{os.getpid()}", first.kind, first.debit,
            first.credit, first.amount, first.at, first.about, first.memo,
        )  # fmt: skip

    patch.setattr(reservation_charges, "charge_of", another)
    patch.setattr(SqlLedger, "periods_paid", lambda self, tenant, reservation: 0)


def ships_what_it_has_forgotten(patch: Patch) -> None:
    apply = Shipper._apply

    def confirmed(self: Any, events: Sequence[UsageEvent], now: int) -> None:
        self._outbox.delete(upto=self._outbox.oldest(len(events))[-1][0])
        apply(self, events, now)

    patch.setattr(Shipper, "_apply", confirmed)


NOTICED: dict[Callable[[Patch], None], str] = {
    bills_flex_in_full: "owed",
    bills_reserved_slots_in_full: "owed",
    bills_all_to_one_pool: "limits",
    gives_flex_reserved_slots: "owed",
    settles_flex_holds_twice: "limits",
    settles_what_was_held: "limits",
    draws_what_others_slots_gave: "limits",
    charges_periods_anew: "periods",
    ships_what_it_has_forgotten: "seen whole",
}
"""Defects, and a word of what a campaign says of each."""
