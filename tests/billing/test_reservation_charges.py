"""Every period of a reservation is paid once, whoever charges it and however often."""

from __future__ import annotations

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.billing.reservation_charges import (
    BELIEVED_S,
    HeldBackClock,
    ReservationCharges,
)
from prime_inference.domain.reservations import Period, Reservation
from prime_inference.ports.ledger import REVENUE, tenant_account

HOUR = 3600.0
ONE = Reservation("res_1", "team_1", "m", 4, 1000.0, 7, Period.HOUR, 1.0, ends_at=1000 + 5 * HOUR)


def charges(ledger: SqlLedger, now: float, *reservations: Reservation) -> int:
    return ReservationCharges(ledger, lambda: reservations or (ONE,), lambda: now).charge()


def test_periods_are_paid_as_they_begin_and_never_twice(ledger: SqlLedger):
    assert charges(ledger, 999.0) == 0
    assert charges(ledger, 1000.0) == 1
    one = ReservationCharges(ledger, lambda: [ONE], lambda: 1000 + 2.5 * HOUR)
    assert (one.charge(), one.charge()) == (2, 0)
    assert charges(ledger, 1e9) == 2
    assert ledger.balance(tenant_account("team_1")) == -5 * 7
    assert ledger.balance(REVENUE) == 5 * 7
    assert ledger.verify().sound


def test_each_reservation_pays_for_itself(ledger: SqlLedger):
    other = Reservation("res_10", "team_1", "m", 1, 1000.0, 100, Period.MONTH, 1.0)
    assert charges(ledger, 1000 + 1.5 * HOUR, ONE, other) == 3
    assert ledger.balance(tenant_account("team_1")) == -(2 * 7 + 100)
    (month,) = [each for each in ledger.transfers("team_1", 9) if each.about == "res_10"]
    assert (month.kind, month.at, month.memo) == (
        "reservation",
        1_000_000_000,
        "1 slots of m for a month",
    )


def test_one_that_ended_before_it_began_costs_nothing(ledger: SqlLedger):
    never = Reservation("res_2", "team_1", "m", 1, 1000.0, 100, Period.HOUR, 1.0, ends_at=500.0)
    assert charges(ledger, 1e9, never) == 0


def test_a_clock_that_slips_ahead_charges_nothing_that_has_not_begun(ledger: SqlLedger):
    """It is believed once it has been ahead for long; one that goes back at once."""
    steady, slipped = 0.0, 0.0
    clock = HeldBackClock(lambda: 1000 + steady + slipped, lambda: steady)
    charging = ReservationCharges(ledger, lambda: [ONE], clock)
    assert charging.charge() == 1
    for slipped in (48 * HOUR, 0.0, 2 * HOUR, 1.0):
        for _ in range(4):
            steady += 2
            assert charging.charge() == 0
            assert clock() <= 1000 + steady + slipped
    slipped = 2 * HOUR
    for _ in range(int(BELIEVED_S / 2)):
        steady += 2
        assert charging.charge() == 0
    steady += 2
    assert charging.charge() == 2
    slipped = -HOUR
    assert clock() == 1000 + steady - HOUR


def test_no_period_is_charged_before_the_database_has_it(ledger: SqlLedger):
    theirs = 1000 + 1.5 * HOUR
    ahead = ReservationCharges(
        ledger, lambda: [ONE], lambda: 1000 + 99 * HOUR, database_now=lambda: theirs
    )
    assert [ahead.charge(), ahead.charge()] == [2, 0]
    theirs = 1000 + 2.5 * HOUR
    assert ahead.charge() == 1
