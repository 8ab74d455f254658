"""Reservations: when they are active, when they are paid, and whose slots they are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.models import Deployment
from prime_inference.domain.reservations import (
    Period,
    Reservation,
    State,
    allot,
    missing,
    period_start,
    periods_due,
)


def reservation(number: int = 1, **fields: Any) -> Reservation:
    return Reservation(
        **{
            "id": f"res_{number}",
            "tenant": "team_1",
            "model": "m",
            "slots": 4,
            "starts_at": 1000.0,
            "price": 5,
            "period": Period.HOUR,
            "created_at": float(number),
            **fields,
        }
    )


def deployment(name: str, slots: int, **fields: Any) -> Deployment:
    return Deployment(
        **{
            "id": name,
            "model": "m",
            "datacenter": f"dc-{name}",
            "base_url": "http://127.0.0.1:1/v1",
            "engine": "openai",
            "slots": slots,
            "upstream_model": "m",
            **fields,
        }
    )


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_it_is_scheduled_then_active_then_ended():
    whole = reservation(ends_at=2000.0)
    assert [whole.state(now) for now in (999, 1000, 1999, 2000)] == [
        State.SCHEDULED,
        State.ACTIVE,
        State.ACTIVE,
        State.ENDED,
    ]
    assert reservation().state(1e12) is State.ACTIVE
    assert reservation(ends_at=500.0).state(600) is State.ENDED


def test_an_hour_that_has_begun_is_due_and_one_at_the_end_is_not():
    hours = reservation(ends_at=1000.0 + 2 * 3600)
    times = (999.0, 1000.0, 4599.0, 4600.0, 8200.0, 1e9)
    assert [periods_due(hours, now) for now in times] == [0, 1, 1, 2, 2, 2]
    assert periods_due(reservation(ends_at=500.0), 1e9) == 0


def test_months_begin_on_the_same_day_or_the_last():
    start = moment("2027-01-31T10:00:00")
    months = reservation(period=Period.MONTH, starts_at=start)
    begins = [datetime.fromtimestamp(period_start(months, n), UTC) for n in range(4)]
    assert [(b.month, b.day, b.hour) for b in begins] == [
        (1, 31, 10),
        (2, 28, 10),
        (3, 31, 10),
        (4, 30, 10),
    ]
    assert periods_due(months, moment("2027-02-28T09:59:59")) == 1
    assert periods_due(months, moment("2027-02-28T10:00:00")) == 2


@given(
    period=st.sampled_from(Period),
    start=st.integers(1_700_000_000, 1_800_000_000),
    seconds=st.integers(0, 200_000_000),
)
def test_as_many_periods_are_due_as_have_begun(period: Period, start: int, seconds: int):
    one = reservation(period=period, starts_at=float(start))
    due = periods_due(one, start + seconds)
    assert period_start(one, due - 1) <= start + seconds < period_start(one, due)


def test_slots_are_divided_in_proportion_to_those_that_are_free():
    fleet = [deployment("a", 12), deployment("b", 4), deployment("c", 9, model="other")]
    assert allot([reservation(slots=8)], fleet) == {"a": {"res_1": 6}, "b": {"res_1": 2}}


def test_datacenters_are_kept_to_and_draining_deployments_left_out():
    fleet = [deployment("a", 8), deployment("b", 8), deployment("c", 8, draining=True)]
    named = reservation(datacenters=frozenset({"dc-b", "dc-c"}))
    assert allot([named], fleet) == {"b": {"res_1": 4}}


def test_what_does_not_fit_is_missing_and_the_older_comes_first():
    young, old = reservation(2, slots=7), reservation(1, slots=6)
    parts = allot([young, old], [deployment("a", 8)])
    assert parts == {"a": {"res_1": 6, "res_2": 2}}
    assert (missing(old, parts), missing(young, parts)) == (0, 5)


@given(
    wanted=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    slots=st.lists(st.integers(1, 30), min_size=1, max_size=5),
)
def test_no_deployment_gives_more_than_it_has_and_nothing_is_held_back(
    wanted: list[int], slots: list[int]
):
    fleet = [deployment(str(number), each) for number, each in enumerate(slots)]
    reservations = [reservation(number, slots=each) for number, each in enumerate(wanted)]
    parts = allot(reservations, fleet)
    assert parts == allot(reversed(reservations), list(reversed(fleet)))
    for each in fleet:
        assert sum(parts.get(each.id, {}).values()) <= each.slots
    given_out = sum(sum(each.values()) for each in parts.values())
    assert given_out == min(sum(wanted), sum(slots))
