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
from prime_inference.reliability.commands import (
    Command,
    LeaseBlocks,
    ReadBreakers,
    ReturnBlocks,
)
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.slots import Refusal
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


def _leases(fleet: Fleet) -> list[LeaseBlocks]:
    return [call for call in fleet.calls if isinstance(call, LeaseBlocks)]


def _reads(fleet: Fleet) -> int:
    return sum(isinstance(call, ReadBreakers) for call in fleet.calls)


def test_everything_is_asked_in_one_command() -> None:
    fleet = Fleet(*(deployment(f"d{number}") for number in range(30)))
    admit(fleet.guard, "d7")
    fleet.advance(10)
    fleet.calls.clear()
    fleet.advance(34)
    assert len(_leases(fleet)) == 4
    assert {len(call.asks) for call in _leases(fleet)} == {30}


def test_a_replica_without_requests_is_nearly_silent() -> None:
    fleet = Fleet(*(deployment(f"d{number}") for number in range(30)), pushed=True)
    fleet.advance(60)
    fleet.calls.clear()
    fleet.advance(600)
    assert {(a.interactive, a.has, a.ttl_s) for c in _leases(fleet) for a in c.asks} == {
        (0, 0, 10)  # a replica that is killed at rest is missed as soon as any other
    }
    assert len(_leases(fleet)) == 600 // 8.5
    assert _reads(fleet) == 10
    assert not fleet.guard.degraded


def test_replicas_at_rest_are_counted() -> None:
    fleet = Fleet(deployment("a", slots=6), replicas=3)
    for _ in range(100):
        with admit(fleet.guard, "a"):
            fleet.advance(3)
    assert fleet.guard.replicas == 3


def test_slots_of_a_replica_at_rest_are_free_for_others_but_for_what_it_keeps() -> None:
    fleet = Fleet(deployment("a", slots=6), replicas=3)
    fleet.advance(60)
    fleet.guard.began("m")
    fleet.settle()
    slots = []
    for _ in range(4):
        slots.append(admit(fleet.guard, "a"))
        fleet.advance(0.5)
    assert isinstance(fleet.guard.admit("a"), Refusal)
    fleet.store_up = False
    fleet.advance(15)
    for guard in fleet.guards[1:]:
        slots.append(admit(guard, "a"))
        assert isinstance(guard.admit("a"), Refusal)


def test_a_model_rests_while_another_is_in_use() -> None:
    fleet = Fleet(deployment("a"), deployment("b", model="n"))
    admit(fleet.guard, "a")
    fleet.advance(60)
    leased = {status.id: status.leased for status in fleet.guard.status()}
    assert leased["a"] > 0
    assert leased["b"] == 0
    assert fleet.guard.began("m")
    assert not fleet.guard.began("n")


def test_a_request_after_a_rest_finds_slots_of_every_deployment_of_its_model() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fleet.advance(60)
    told: list[bool] = []
    assert not fleet.guard.began("m")
    fleet.guard.when_leased("m", lambda: told.append(True))
    assert not told
    fleet.settle()
    assert told == [True]
    assert fleet.guard.began("m")
    admit(fleet.guard, "a")
    admit(fleet.guard, "b")


def test_a_request_after_a_rest_waits_for_one_call_if_the_store_is_gone() -> None:
    fleet = Fleet(deployment("a"))
    fleet.advance(60)
    fleet.store_up = False
    told: list[bool] = []
    assert not fleet.guard.began("m")
    fleet.guard.when_leased("m", lambda: told.append(True))
    for command in fleet.guard.due():
        fleet.guard.fail(command)
    assert told == [True]
    admit(fleet.guard, "a")


def test_without_a_store_no_request_waits_for_it() -> None:
    fleet = Fleet(deployment("a"))
    fleet.advance(60)
    fleet.store_up = False
    fleet.advance(120)
    assert fleet.guard.degraded
    assert fleet.guard.began("m")
    admit(fleet.guard, "a")


def test_nothing_rests_under_long_answers_or_while_a_deployment_has_to_be_probed() -> None:
    fleet = Fleet(deployment("a"), deployment("b", model="n"), canary=True)
    admit(fleet.guard, "a")
    fail(fleet.guard, "b")
    fleet.advance(120)
    assert all(status.leased for status in fleet.guard.status())


def test_a_replica_at_rest_that_learns_of_an_open_breaker_gets_ready_to_probe() -> None:
    fleet = Fleet(deployment("a"), replicas=2, canary=True, pushed=True)
    fleet.advance(60)
    fleet.guards[1].began("m")
    fleet.settle()
    fail(fleet.guards[1], "a")
    fleet.advance(1)
    assert fleet.guards[0].is_ejected("a")
    assert fleet.guards[0].status()[0].leased > 0


def test_breakers_are_read_seldom_while_push_is_heard_and_often_otherwise() -> None:
    fleet = Fleet(deployment("a"), pushed=True)
    admit(fleet.guard, "a")
    fleet.advance(10)
    fleet.calls.clear()
    fleet.advance(20, step=0.05)
    assert 9 <= _reads(fleet) <= 10
    fleet.store.listeners.clear()  # the subscription dies and nobody is told
    fleet.advance(4, step=0.05)
    fleet.calls.clear()
    fleet.advance(3, step=0.05)
    assert _reads(fleet) >= 14


def test_a_subscription_that_is_known_to_be_lost_is_made_up_for_at_once() -> None:
    fleet = Fleet(deployment("a"), pushed=True)
    admit(fleet.guard, "a")
    fleet.advance(10)
    fleet.store.listeners.clear()
    fleet.calls.clear()
    fleet.guard.push_lost()
    fleet.advance(3, step=0.05)
    assert _reads(fleet) >= 14
    fleet.store.listeners.append(fleet.guard.follow)
    fleet.advance(3, step=0.05)
    fleet.calls.clear()
    fleet.advance(20, step=0.05)
    assert 9 <= _reads(fleet) <= 10


def test_beats_that_others_caused_are_as_good() -> None:
    fleet = Fleet(deployment("a", slots=7), replicas=7, pushed=True)
    for guard in fleet.guards:
        guard.began("m")
        fleet.advance(0.3, step=0.05)
    fleet.advance(10, step=0.05)
    fleet.calls.clear()
    fleet.advance(10, step=0.05)
    assert _reads(fleet) <= 7 * 6
