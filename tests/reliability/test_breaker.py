"""One replica's view of one breaker."""

from __future__ import annotations

from random import Random

import pytest

from prime_inference.ports.coordination import BreakerRecord, BreakerState, Cause, Trip, Verdict
from prime_inference.reliability.breaker import Breaker, Ticket
from prime_inference.reliability.settings import BreakerSettings

SETTINGS = BreakerSettings()
OPEN, CLOSED, HALF_OPEN = BreakerState.OPEN, BreakerState.CLOSED, BreakerState.HALF_OPEN


@pytest.fixture
def breaker() -> Breaker:
    return Breaker("d", SETTINGS, Random(1))


def _record(state: BreakerState, epoch: int, remaining_s: float = 0.0) -> BreakerRecord:
    return BreakerRecord("d", state, epoch, remaining_s, Cause.CONSECUTIVE, 1)


def _fail(breaker: Breaker, times: int, now: float = 100.0, rate_may_eject: bool = True) -> None:
    for _ in range(times):
        breaker.failed(now, rate_may_eject)


def _tripped(breaker: Breaker) -> Trip:
    _fail(breaker, SETTINGS.consecutive_failures)
    trip = breaker.unpublished
    assert trip is not None
    return trip


def _ticket(breaker: Breaker, *, shared: bool = True, deadline: float = 1000.0) -> Ticket:
    ticket = Ticket("d", "r:1", breaker.epoch, deadline, shared)
    breaker.take_ticket(ticket, None, now=100)
    return ticket


def test_failures_in_a_row_open_at_once_and_ask_to_be_published(breaker: Breaker) -> None:
    _fail(breaker, 4)
    assert breaker.state is CLOSED
    _fail(breaker, 1)
    assert breaker.state is OPEN
    assert breaker.unpublished is not None
    assert breaker.unpublished.cause is Cause.CONSECUTIVE


@pytest.mark.parametrize(
    ("reached", "cause"),
    [
        ([False] * 5, Cause.UNREACHABLE),
        ([False] * 4 + [True], Cause.CONSECUTIVE),
        ([True] + [False] * 4, Cause.CONSECUTIVE),
    ],
)
def test_only_failures_that_all_reached_nobody_say_that_it_is_unreachable(
    breaker: Breaker, reached: list[bool], cause: Cause
) -> None:
    for each in reached:
        breaker.failed(100, True, reached=each)
    assert breaker.unpublished is not None
    assert breaker.unpublished.cause is cause


def test_an_answer_between_breaks_the_row(breaker: Breaker) -> None:
    _fail(breaker, 4)
    breaker.answered(100)
    _fail(breaker, 4)
    assert breaker.state is CLOSED


def test_a_rate_needs_enough_attempts(breaker: Breaker) -> None:
    for _ in range(9):
        breaker.answered(100)
        _fail(breaker, 1)
    assert breaker.state is CLOSED
    breaker.answered(100)
    _fail(breaker, 1)
    assert breaker.state is OPEN
    assert breaker.cause is Cause.RATE


def test_a_rate_does_not_open_where_statistics_may_eject_no_more(breaker: Breaker) -> None:
    for _ in range(40):
        breaker.answered(100)
        _fail(breaker, 1, rate_may_eject=False)
    assert breaker.state is CLOSED


def test_old_failures_do_not_count_towards_a_rate(breaker: Breaker) -> None:
    for second in range(100, 130):
        breaker.answered(second)
        _fail(breaker, 1, now=second)
    assert breaker.state is OPEN  # 20 of 20 seconds' attempts fit into no window of 10
    other = Breaker("e", BreakerSettings(least_calls=40), Random(1))
    for second in range(100, 130):
        other.answered(second)
        _fail(other, 1, now=second)
    assert other.state is CLOSED


def test_a_remote_opening_is_followed(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=100)
    assert breaker.state is OPEN
    assert breaker.due_at == 108


def test_a_remote_closing_ends_a_remote_opening(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=100)
    breaker.follow(_record(CLOSED, 7), now=101)
    assert breaker.state is CLOSED


def test_an_old_record_is_not_followed(breaker: Breaker) -> None:
    breaker.follow(_record(CLOSED, 7), now=100)
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=101)
    assert breaker.state is CLOSED


def test_a_remote_closed_does_not_close_what_was_opened_here(breaker: Breaker) -> None:
    breaker.follow(_record(CLOSED, 7), now=100)
    _tripped(breaker)
    breaker.follow(_record(CLOSED, 7), now=101)
    assert breaker.state is OPEN


def test_a_published_trip_becomes_the_shared_state(breaker: Breaker) -> None:
    trip = _tripped(breaker)
    breaker.published(trip, _record(OPEN, 9, remaining_s=5), now=100)
    assert (breaker.state, breaker.epoch, breaker.unpublished) == (OPEN, 9, None)


def test_evidence_that_others_have_overtaken_is_dropped(breaker: Breaker) -> None:
    trip = _tripped(breaker)
    breaker.published(trip, _record(CLOSED, 11), now=100)
    assert (breaker.state, breaker.epoch) == (CLOSED, 11)
    _fail(breaker, 4)
    assert breaker.state is CLOSED


def test_an_answer_to_a_trip_that_is_older_than_a_push_is_not_followed(breaker: Breaker) -> None:
    trip = _tripped(breaker)
    breaker.follow(_record(OPEN, 12, remaining_s=5), now=100)
    breaker.published(trip, _record(CLOSED, 11), now=100)
    assert (breaker.state, breaker.epoch) == (OPEN, 12)


def test_a_store_that_has_forgotten_is_told_again(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=100)
    breaker.forgotten(now=101)
    assert breaker.state is OPEN
    assert breaker.unpublished is not None
    assert breaker.unpublished.epoch == 0


def test_a_closed_breaker_has_nothing_to_tell_a_store_that_has_forgotten(breaker: Breaker) -> None:
    breaker.follow(_record(CLOSED, 5), now=100)
    breaker.forgotten(now=101)
    assert breaker.unpublished is None
    breaker.follow(_record(OPEN, 1, remaining_s=8), now=102)
    assert breaker.state is OPEN


def test_told_twice_is_told_once(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=100)
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=104)
    assert breaker.due_at == 108


def test_a_probe_is_due_when_the_open_time_is_over(breaker: Breaker) -> None:
    assert not breaker.probe_is_due(1e9)
    breaker.follow(_record(OPEN, 5, remaining_s=8), now=100)
    assert not breaker.probe_is_due(107.9)
    assert breaker.probe_is_due(108)


def test_no_second_ticket_while_one_is_held_and_a_new_one_after_it_ended(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5, remaining_s=0), now=100)
    _ticket(breaker, deadline=115)
    assert not breaker.probe_is_due(114)
    assert breaker.probe_is_due(115)


def test_a_ticket_is_used_once(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5), now=100)
    ticket = _ticket(breaker)
    assert breaker.use_ticket() is ticket
    assert breaker.use_ticket() is None


def test_a_ticket_that_nobody_came_for_goes_back(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5), now=100)
    ticket = _ticket(breaker)
    assert breaker.unused_ticket(now=100.5) is None
    assert breaker.unused_ticket(now=101) is ticket
    assert breaker.unused_ticket(now=102) is None
    breaker.ticket_ended(ticket)
    assert not breaker.probe_is_due(now=101.9)  # whoever asked meanwhile is next
    assert breaker.probe_is_due(now=102)


def test_a_ticket_for_a_breaker_that_has_changed_since_is_not_taken(breaker: Breaker) -> None:
    breaker.follow(_record(HALF_OPEN, 6), now=100)
    breaker.take_ticket(Ticket("d", "r:1", 5, 200.0, True), None, now=100)
    assert breaker.ticket is None


def test_a_refused_ticket_is_asked_for_again_a_little_later(breaker: Breaker) -> None:
    breaker.follow(_record(HALF_OPEN, 6), now=100)
    breaker.ticket_refused(_record(HALF_OPEN, 6), now=100)
    assert not breaker.probe_is_due(100.4)
    assert breaker.probe_is_due(100.5)


def test_without_the_store_two_answers_close(breaker: Breaker) -> None:
    _tripped(breaker)
    for expected in (OPEN, CLOSED):
        breaker.probe_alone("r:1", now=110)
        ticket = breaker.use_ticket()
        assert ticket is not None
        assert not ticket.shared
        breaker.ticket_ended(ticket)
        breaker.concluded_alone(ticket, Verdict.ANSWERED, now=110)
        assert breaker.state is expected


def test_without_the_store_a_failed_probe_opens_for_longer(breaker: Breaker) -> None:
    _tripped(breaker)
    first = breaker.due_at - 100
    breaker.probe_alone("r:1", now=110)
    ticket = breaker.use_ticket()
    assert ticket is not None
    breaker.concluded_alone(ticket, Verdict.FAILED, now=110)
    assert breaker.due_at - 110 > 1.5 * first


def test_what_the_store_says_when_it_is_back_is_more_careful(breaker: Breaker) -> None:
    breaker.follow(_record(OPEN, 5), now=100)
    for _ in range(2):
        breaker.probe_alone("r:1", now=110)
        ticket = breaker.use_ticket()
        assert ticket is not None
        breaker.ticket_ended(ticket)
        breaker.concluded_alone(ticket, Verdict.ANSWERED, now=110)
    assert breaker.state is CLOSED
    breaker.follow(_record(OPEN, 5), now=120)
    assert breaker.state is OPEN
    assert breaker.probe_is_due(120)


def test_every_opening_and_closing_is_a_new_generation(breaker: Breaker) -> None:
    generations = [breaker.generation]
    _tripped(breaker)
    generations.append(breaker.generation)
    breaker.follow(_record(CLOSED, 9), now=100)
    generations.append(breaker.generation)
    breaker.follow(_record(OPEN, 10, remaining_s=5), now=100)
    generations.append(breaker.generation)
    assert generations == sorted(set(generations))


def test_the_failure_rate_is_that_of_the_window(breaker: Breaker) -> None:
    assert breaker.failure_rate(100) == 0
    breaker.answered(100)
    _fail(breaker, 1)
    assert breaker.failure_rate(100) == 0.5
    assert breaker.failure_rate(111) == 0
