"""What a replica does about commands that the store did not answer."""

from __future__ import annotations

import pytest

from prime_inference.ports.coordination import (
    BreakerState,
    ProbeAsk,
    ProbeResult,
    Trip,
    Verdict,
)
from prime_inference.reliability.commands import Command, LeaseBlocks, ReturnBlocks
from prime_inference.reliability.outcome import Outcome
from tests.reliability.fleet import Fleet, admit, attempt, deployment, fail


@pytest.fixture
def fleet() -> Fleet:
    return Fleet(deployment("a"), deployment("b"))


def _due(fleet: Fleet, kind: type[Command]) -> Command | None:
    """The command of that kind that is due; all others are carried out."""
    found = None
    for command in fleet.guard.due():
        if isinstance(command, kind):
            found = command
        else:
            fleet.guard.accept(command, fleet._perform(command))
    return found


def test_a_trip_that_was_lost_is_published_again(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    lost = _due(fleet, Trip)
    assert lost is not None
    assert _due(fleet, Trip) is None  # one at a time
    fleet.guard.fail(lost)
    fleet.clock.now += 0.3
    assert _due(fleet, Trip) == lost


def test_a_ticket_that_was_lost_with_its_answer_is_got_by_asking_again(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.clock.now += 6
    lost = _due(fleet, ProbeAsk)
    assert lost is not None
    fleet._perform(lost)  # the store granted it
    fleet.guard.fail(lost)
    fleet.clock.now += 0.3
    again = _due(fleet, ProbeAsk)
    assert again == lost
    fleet.guard.accept(again, fleet._perform(again))
    slot = admit(fleet.guard, "a")
    assert slot.ticket is not None
    assert slot.ticket.deadline < fleet.clock.now + 15  # the store counts from the first ask


def test_an_ask_for_a_ticket_is_not_repeated_for_ever(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.clock.now += 6
    first = _due(fleet, ProbeAsk)
    assert isinstance(first, ProbeAsk)
    fleet.guard.fail(first)
    fleet.clock.now += 16
    later = _due(fleet, ProbeAsk)
    assert isinstance(later, ProbeAsk)
    assert later.owner != first.owner


def test_a_verdict_that_was_lost_is_told_again(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.advance(6)
    attempt(fleet.guard, "a", Outcome.ANSWERED)
    lost = _due(fleet, ProbeResult)
    assert isinstance(lost, ProbeResult)
    assert lost.verdict is Verdict.ANSWERED
    fleet.guard.fail(lost)
    fleet.clock.now += 0.3
    assert _due(fleet, ProbeResult) == lost


def test_a_verdict_is_gone_by_alone_when_the_store_is_away(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.advance(6)
    fleet.store_up = False
    attempt(fleet.guard, "a", Outcome.FAILED)
    fleet.advance(2)
    assert fleet.guard.candidates("m") == ["b"]
    fleet.advance(12)
    for _ in range(2):
        attempt(fleet.guard, "a", Outcome.ANSWERED)
        fleet.advance(1)
    assert fleet.guard.status()[0].breaker is BreakerState.CLOSED


def test_a_return_that_was_lost_is_left_to_the_lease(fleet: Fleet) -> None:
    fleet.guard.configure([deployment("b")])
    lost = _due(fleet, ReturnBlocks)
    assert lost is not None
    fleet.guard.fail(lost)
    fleet.clock.now += 1
    assert _due(fleet, ReturnBlocks) is None


def test_answers_about_deployments_that_are_gone_change_nothing(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    lost_trip = _due(fleet, Trip)
    fleet.clock.now += 4
    leases = _due(fleet, LeaseBlocks)
    assert lost_trip is not None
    assert leases is not None
    replies = [fleet._perform(lost_trip), fleet._perform(leases)]
    fleet.guard.configure([deployment("b")])
    for command, reply in zip((lost_trip, leases), replies, strict=True):
        fleet.guard.accept(command, reply)
    assert [status.id for status in fleet.guard.status()] == ["b"]


def test_failures_about_deployments_that_are_gone_change_nothing(fleet: Fleet) -> None:
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.clock.now += 6
    ask = _due(fleet, ProbeAsk)
    assert ask is not None
    fleet.guard.configure([deployment("b")])
    fleet.guard.fail(ask)
    assert fleet.guard.candidates("m") == ["b"]


def test_one_lost_message_is_no_outage_and_three_are() -> None:
    fleet = Fleet(deployment("a"))
    for degraded in (False, False, True):
        assert fleet.guard.degraded is False
        fleet.clock.now += 1
        for command in fleet.guard.due():
            fleet.guard.fail(command)
            break
        assert fleet.guard.degraded is degraded


def test_everything_is_asked_in_one_round_trip() -> None:
    fleet = Fleet(*(deployment(f"d{number}") for number in range(30)))
    fleet.advance(10)
    fleet.calls.clear()
    fleet.advance(10)
    leases = [call for call in fleet.calls if isinstance(call, LeaseBlocks)]
    assert len(leases) <= 4
    assert {len(call.asks) for call in leases} == {30}
