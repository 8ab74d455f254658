"""The façade: what the gateway can rely on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from prime_inference.adapters.memory.coordination import MemoryStore
from prime_inference.domain.errors import CapacityExhausted
from prime_inference.domain.sharing import batch_part
from prime_inference.ports.coordination import (
    Beat,
    BreakerReading,
    BreakerRecord,
    BreakerSnapshot,
    BreakerState,
    Cause,
    OpenTime,
    ProbeAsk,
    Trip,
)
from prime_inference.reliability.commands import LeaseBlocks, ReadBreakers
from prime_inference.reliability.decisions import Retry
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.settings import LeaseSettings
from prime_inference.reliability.slots import Priority, Reason, Refusal, Slot
from prime_inference.reliability.waiting import Waiter
from tests.reliability.fleet import Fleet, admit, attempt, deployment, fail


def _busy(fleet: Fleet, name: str, slots: int = 4) -> list[Slot]:
    """Fill a deployment, giving the replica time to lease it."""
    taken: list[Slot] = []
    for _ in range(50):
        slot = fleet.guard.admit(name)
        if isinstance(slot, Slot):
            taken.append(slot)
        if len(taken) == slots:
            return taken
        fleet.advance(0.2)
    raise AssertionError("the deployment cannot be filled")


# --- admission ---


def test_a_slot_is_taken_without_asking_the_store() -> None:
    fleet = Fleet(deployment("a"))
    fleet.calls.clear()
    with admit(fleet.guard, "a"):
        pass
    assert fleet.calls == []


def test_every_slot_can_be_used_and_not_one_more() -> None:
    fleet = Fleet(deployment("a", slots=4))
    _busy(fleet, "a", 4)
    refusal = fleet.guard.admit("a")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.FULL


def test_two_replicas_share_the_slots_of_a_deployment() -> None:
    fleet = Fleet(deployment("a", slots=4), replicas=2)
    running: list[Slot] = []
    for _ in range(100):  # requests of a second each, more than there are slots
        for guard in fleet.guards:
            for _ in range(4):
                slot = guard.admit("a")
                if isinstance(slot, Slot):
                    running.append(slot)
        assert sum(guard.status()[0].in_flight for guard in fleet.guards) <= 4
        fleet.advance(1)
        for slot in running:
            slot.release()
        running.clear()
    assert [guard.status()[0].leased for guard in fleet.guards] == [2, 2]


def test_a_slot_can_be_given_back_only_once() -> None:
    fleet = Fleet(deployment("a", slots=2))
    one, _ = _busy(fleet, "a", 2)
    one.release()
    one.release()
    assert fleet.guard.status()[0].in_flight == 1


def test_a_slot_is_given_back_when_the_request_is_cancelled() -> None:
    fleet = Fleet(deployment("a"))
    with pytest.raises(KeyboardInterrupt), admit(fleet.guard, "a"):
        raise KeyboardInterrupt
    status = fleet.guard.status()[0]
    assert (status.in_flight, status.failed) == (0, 0)


def test_batch_requests_leave_room_for_interactive_ones() -> None:
    fleet = Fleet(deployment("a", slots=5))
    for _ in range(40):
        fleet.guard.admit("a", Priority.BATCH)
        fleet.advance(0.25)
    assert fleet.guard.status()[0].batch_in_flight == 4
    admit(fleet.guard, "a", Priority.INTERACTIVE)


def test_interactive_requests_may_take_every_slot() -> None:
    fleet = Fleet(deployment("a", slots=5))
    _busy(fleet, "a", 5)
    assert isinstance(fleet.guard.admit("a", Priority.BATCH), Refusal)


def test_a_refusal_tells_when_a_slot_is_expected() -> None:
    fleet = Fleet(deployment("a", slots=2))
    for slot in _busy(fleet, "a", 2):
        fleet.clock.now += 10  # the first is held for 10 s, the second for 20 s
        fleet.settle()
        slot.release()
    _busy(fleet, "a", 2)
    refusal = fleet.guard.admit("a")
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == pytest.approx(11 / 2, rel=0.2)  # a mean of 11 s, on two slots
    error = refusal.error("m")
    assert isinstance(error, CapacityExhausted)
    assert error.retry_after in (5, 6, 7)


def test_an_unknown_deployment_is_gone() -> None:
    fleet = Fleet(deployment("a"))
    refusal = fleet.guard.admit("nowhere")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.GONE


def test_a_dead_replicas_slots_come_back_within_the_lease_time() -> None:
    fleet = Fleet(deployment("a", slots=4), replicas=2)
    dead, alive = fleet.guards
    for _ in range(20):  # the first one takes all there is
        dead.admit("a")
        fleet.advance(0.25)
    assert dead.status()[0].in_flight == 3  # the other one keeps one slot warm
    fleet.guards = [alive]
    began = fleet.clock.now
    while alive.status()[0].in_flight < 4:
        alive.admit("a")
        fleet.advance(0.1)
        assert fleet.clock.now - began < 11.2, "longer than the lease and one contended ask"


def test_a_slot_knows_that_its_lease_has_ended_in_between() -> None:
    fleet = Fleet(deployment("a"), replicas=2)
    slot = admit(fleet.guard, "a")
    assert not slot.fenced
    admit(fleet.guards[1], "a")  # the other one goes on asking
    frozen = fleet.guards.pop(0)
    fleet.advance(30)
    fleet.guards.insert(0, frozen)
    fleet.settle()
    assert slot.fenced


def test_a_lease_that_ended_while_the_store_was_away_is_its_holders_when_it_is_back() -> None:
    fleet = Fleet(deployment("a", slots=8), replicas=2)
    fleet.advance(60)
    fleet.guard.began("m")
    for _ in range(6):
        fleet.advance(1)
        admit(fleet.guard, "a")
    fleet.store_up = False
    fleet.advance(30)
    fleet.store_up = True
    fleet.guards.reverse()  # whoever has nothing in flight asks first
    for _ in range(30):
        for guard in fleet.guards:
            guard.admit("a")
        fleet.advance(0.5)
    assert sum(guard.status()[0].in_flight for guard in fleet.guards) == 8


def test_the_store_is_asked_little() -> None:
    fleet = Fleet(deployment("a", slots=8), deployment("b", slots=8))
    fleet.advance(5)
    fleet.calls.clear()
    for _ in range(1000):
        for name in "ab":
            with admit(fleet.guard, name):
                fleet.advance(0.005, step=0.005)
    leases = sum(isinstance(call, LeaseBlocks) for call in fleet.calls)
    assert leases <= 20  # for 2,000 requests in 10 s: both deployments are asked for together


# --- the store is away ---


def test_without_the_store_requests_go_on() -> None:
    fleet = Fleet(deployment("a", slots=4), replicas=2)
    fleet.advance(120)
    fleet.store_up = False
    fleet.advance(30)
    assert fleet.guard.degraded
    admit(fleet.guard, "a")
    assert isinstance(fleet.guard.admit("a"), Refusal)  # half of its part: the other may have more
    fleet.store_up = True
    fleet.advance(2)
    assert not fleet.guard.degraded


def test_a_replica_that_starts_without_the_store_serves() -> None:
    fleet = Fleet()
    fleet.store_up = False
    fleet.guard.configure([deployment("a", slots=9)])
    fleet.settle()
    for _ in range(3):
        admit(fleet.guard, "a")
    assert isinstance(fleet.guard.admit("a"), Refusal)


def test_without_the_store_breakers_open_and_close_alone() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fleet.store_up = False
    fleet.advance(2)
    fail(fleet.guard, "a")
    assert fleet.guard.candidates("m") == ["b"]
    fleet.advance(6)
    for _ in range(2):  # two probes
        assert fleet.guard.candidates("m")[0] == "a"
        attempt(fleet.guard, "a", Outcome.ANSWERED)
        fleet.advance(0.5)
    assert fleet.guard.status()[0].breaker is BreakerState.CLOSED


def test_a_store_that_begins_anew_with_lower_epochs_is_followed() -> None:
    fleet = Fleet(deployment("a"), deployment("b"), replicas=2)
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.store = MemoryStore()  # emptied, and its clock set back
    fleet.store_offset = -500.0
    fleet.advance(1)
    newer = fleet.store.breakers.read(-1, now=fleet.clock.now - 500).news
    assert newer is not None
    assert [record.state for record in newer.records] == [BreakerState.OPEN]  # told again
    fleet.advance(6)
    for guard in fleet.guards * 10:
        if guard.candidates("m")[0] == "a":
            attempt(guard, "a", Outcome.ANSWERED)
        fleet.advance(0.3)
    assert not any(guard.is_ejected("a") for guard in fleet.guards)


def tell(fleet: Fleet, *records: BreakerRecord) -> None:
    """The store has these breakers."""
    version = max(record.epoch for record in records)
    news = BreakerSnapshot(version, records)
    fleet.guard.accept(ReadBreakers(-1), BreakerReading(Beat(1), news))


def test_an_answer_that_another_has_overtaken_resets_nothing() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    tell(fleet, BreakerRecord("a", BreakerState.OPEN, epoch=10**12, remaining_s=9))
    behind = BreakerSnapshot(version=10**11, records=())
    fleet.guard.accept(ReadBreakers(-1), BreakerReading(Beat(1), behind))
    assert fleet.guard.candidates("m") == ["b"]
    assert fleet.guard.status()[0].breaker is BreakerState.OPEN


# --- breakers ---


def test_a_failing_deployment_is_not_offered_any_more_on_any_replica() -> None:
    fleet = Fleet(deployment("a"), deployment("b"), replicas=3)
    fail(fleet.guard, "a")
    assert fleet.guard.candidates("m") == ["b"]  # at once, before the store knows
    fleet.settle()
    fleet.advance(0.2)
    for guard in fleet.guards:
        assert guard.candidates("m") == ["b"]


def test_the_last_deployment_of_a_model_is_always_offered() -> None:
    fleet = Fleet(deployment("a"))
    fail(fleet.guard, "a", times=20)
    fleet.settle()
    assert fleet.guard.candidates("m") == ["a"]
    assert fleet.guard.is_ejected("a")


def test_if_all_are_ejected_all_are_offered_the_soonest_due_first() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fail(fleet.guard, "b")
    fleet.advance(2)
    fail(fleet.guard, "a")
    assert fleet.guard.candidates("m") == ["b", "a"]


def test_a_poisoned_store_cannot_eject_everything() -> None:
    fleet = Fleet(*(deployment(name) for name in "abcd"))
    tell(fleet, *(
        BreakerRecord(name, BreakerState.OPEN, epoch, remaining_s=1e9, cause=Cause.CONSECUTIVE)
        for epoch, name in enumerate("abcd", start=1)
    ))  # fmt: skip
    assert sorted(fleet.guard.candidates("m")) == list("abcd")


def test_a_push_is_believed_as_far_as_the_store_says_so() -> None:
    fleet = Fleet(deployment("a"), deployment("b"), replicas=2, pushed=True)
    admit(fleet.guard, "a")
    fleet.advance(5)
    made_up = BreakerRecord("a", BreakerState.OPEN, 2**52, remaining_s=1e9, trips=10**6)
    for guard in fleet.guards:
        guard.follow(made_up)
        guard.follow(BreakerRecord("stranger", BreakerState.OPEN, 2**52))
        assert not guard.is_ejected("a")
    fleet.advance(1)
    assert not any(guard.is_ejected("a") for guard in fleet.guards)
    stored = fleet.store.breakers.read(-1, now=fleet.clock.now).news
    assert stored is not None
    assert stored.records == ()  # nor was it told to the store as if it were known
    fail(fleet.guard, "a")  # a real one is believed as ever
    fleet.advance(0.1)
    assert all(guard.is_ejected("a") for guard in fleet.guards)


def test_statistics_of_two_replicas_do_not_eject_more_than_half() -> None:
    fleet = Fleet(*(deployment(name) for name in "abcd"))
    tell(fleet, *(  # each by another replica, at the same time
        BreakerRecord(name, BreakerState.OPEN, epoch, remaining_s=9, cause=Cause.RATE)
        for epoch, name in enumerate("abc", start=1)
    ))  # fmt: skip
    offered = fleet.guard.candidates("m")
    assert len(offered) == 2
    assert "d" in offered


def test_a_rate_alone_does_not_open_a_second_of_two() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    for name in "ab":
        for _ in range(30):
            attempt(fleet.guard, name, Outcome.ANSWERED)
            attempt(fleet.guard, name, Outcome.FAILED)
    breakers = [status.breaker for status in fleet.guard.status()]
    assert breakers == [BreakerState.OPEN, BreakerState.CLOSED]


def test_refusals_and_clients_that_leave_open_nothing() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    for _ in range(50):
        attempt(fleet.guard, "a", Outcome.NEUTRAL)
    assert sorted(fleet.guard.candidates("m")) == ["a", "b"]


def test_failures_of_attempts_from_before_the_last_closing_do_not_count() -> None:
    fleet = Fleet(deployment("a", slots=8), deployment("b"))
    old = _busy(fleet, "a", 6)
    for slot in old[:5]:
        slot.record(Outcome.FAILED)
    for slot in old[:5]:
        slot.release()
    fleet.advance(6)
    for _ in range(2):
        attempt(fleet.guard, "a", Outcome.ANSWERED)
        fleet.advance(0.5)
    assert not fleet.guard.is_ejected("a")
    late = old[5]
    for _ in range(5):
        late.record(Outcome.FAILED)
    fail(fleet.guard, "a", times=4)
    assert not fleet.guard.is_ejected("a")


def test_where_nobody_gets_a_connection_it_is_down_on_every_replica_until_it_is_back() -> None:
    fleet = Fleet(deployment("a"), deployment("b"), replicas=2)
    for _ in range(5):
        assert fleet.guard.down_deployments() == {}
        attempt(fleet.guard, "a", Outcome.UNREACHED)
    assert fleet.guard.down_deployments().keys() == {"a"}
    fleet.advance(0.3)
    assert fleet.guards[1].down_deployments().keys() == {"a"}
    fail(fleet.guard, "b")  # failures of another kind do not say that it is down
    assert fleet.guard.down_deployments().keys() == {"a"}
    fleet.advance(6)
    for _ in range(2):
        attempt(fleet.guard, "a", Outcome.ANSWERED)
        fleet.advance(0.5)
    assert fleet.guard.down_deployments() == {}


def test_unhealthy_is_not_yet_down_and_down_outlasts_a_drain() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    slot = admit(fleet.guard, "a")
    fleet.guard.set_health("a", healthy=False)
    assert fleet.guard.down_deployments() == {}
    fleet.guard.set_health("a", healthy=False, down=True)
    fleet.guard.drain("a")
    assert fleet.guard.down_deployments().keys() == {"a"}
    assert fleet.guard.may_retry("m", "a", moved=False)
    assert fleet.guard.decisions.retries == {("m", Retry.FREE): 1}
    slot.release()
    assert fleet.guard.down_deployments() == {}


def test_first_tokens_and_answers_are_signs_of_life_and_failures_are_none() -> None:
    fleet = Fleet(deployment("a"))
    fail(fleet.guard, "a", times=2)
    attempt(fleet.guard, "a", Outcome.UNREACHED)
    attempt(fleet.guard, "a", Outcome.NEUTRAL)
    assert fleet.guard.signs_of_life("a") == 0
    with admit(fleet.guard, "a") as slot:
        slot.first_token()
        assert fleet.guard.signs_of_life("a") == 1
    attempt(fleet.guard, "a", Outcome.ANSWERED)
    assert fleet.guard.signs_of_life("a") == 2
    assert fleet.guard.signs_of_life("gone") == 0


def test_an_unhealthy_deployment_is_offered_only_as_the_last() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fleet.guard.set_health("a", healthy=False)
    assert fleet.guard.candidates("m") == ["b"]
    fleet.guard.set_health("b", healthy=False)
    assert len(fleet.guard.candidates("m")) == 2
    fleet.guard.set_health("a", healthy=True)
    assert fleet.guard.candidates("m") == ["a"]


# --- probes ---


def test_a_deployment_that_is_due_is_probed_by_the_next_request_and_comes_back() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fail(fleet.guard, "a")
    fleet.advance(4)
    assert fleet.guard.candidates("m") == ["b"]
    fleet.advance(2)
    for _ in range(2):
        assert fleet.guard.candidates("m") == ["a", "b"]
        attempt(fleet.guard, "a", Outcome.ANSWERED)
        fleet.advance(0.3)
    assert not fleet.guard.is_ejected("a")


def test_only_one_request_is_the_probe() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fail(fleet.guard, "a")
    fleet.advance(6)
    probe = admit(fleet.guard, "a")
    assert probe.ticket is not None
    assert fleet.guard.candidates("m") == ["b"]


def test_a_first_token_answers_a_probe_before_the_stream_ends() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fail(fleet.guard, "a")
    for _ in range(2):
        fleet.advance(6)
        admit(fleet.guard, "a").first_token()
        fleet.settle()
    assert not fleet.guard.is_ejected("a")


def test_a_failed_probe_ejects_for_longer() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fail(fleet.guard, "a")
    fleet.advance(6)
    attempt(fleet.guard, "a", Outcome.FAILED)
    fleet.advance(6)
    assert fleet.guard.candidates("m") == ["b"]
    fleet.advance(4)
    assert probed_soon(fleet, "a")


def probed_soon(fleet: Fleet, name: str) -> bool:
    """Whether a replica offers it to requests for a probe within 3 s; none does all the time."""
    for _ in range(12):
        for guard in fleet.guards:
            guard.began("m")
        fleet.advance(0.25)
        if any(guard.candidates("m")[0] == name for guard in fleet.guards):
            return True
    return False


def test_probes_of_all_replicas_together_are_few() -> None:
    fleet = Fleet(deployment("a", slots=50), deployment("b"), replicas=10)
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.advance(6)
    probing = [guard for guard in fleet.guards if guard.candidates("m")[0] == "a"]
    assert 1 <= len(probing) <= 2


def test_a_replica_with_tickets_but_no_traffic_hands_them_on() -> None:
    fleet = Fleet(deployment("a", slots=50), deployment("b"), replicas=4)
    fail(fleet.guard, "a")
    fleet.settle()
    busy = fleet.guards[3]
    for _ in range(200):
        fleet.advance(0.1, step=0.1)
        if busy.candidates("m")[0] == "a":
            attempt(busy, "a", Outcome.ANSWERED)
        if not busy.is_ejected("a"):
            break
    assert not busy.is_ejected("a")


def test_a_prober_that_died_does_not_keep_the_breaker_open() -> None:
    fleet = Fleet(deployment("a", slots=50), deployment("b"), replicas=3)
    fail(fleet.guard, "a")
    fleet.settle()
    fleet.advance(6)
    for guard in fleet.guards:
        if guard.candidates("m")[0] == "a":
            admit(guard, "a")  # and then nothing is heard of the probe
    fleet.guards = [guard for guard in fleet.guards if guard.status()[0].in_flight == 0]
    fleet.advance(14)
    assert probed_soon(fleet, "a")


def test_a_replica_without_requests_keeps_no_slot_for_a_probe_that_only_they_could_be() -> None:
    fleet = Fleet(deployment("a", slots=1), deployment("b"), replicas=2)
    idle, busy = fleet.guards
    admit(idle, "a").release()
    fail(idle, "a")
    fleet.settle()
    leased = []
    for _ in range(160):
        busy.began("m")
        fleet.advance(0.25)
        leased.append(idle.status()[0].leased)
    assert set(leased[-80:]) == {0}
    assert isinstance(busy.admit("a"), Slot)


def test_a_canary_probes_instead_of_requests() -> None:
    fleet = Fleet(deployment("a"), deployment("b"), canary=True)
    fail(fleet.guard, "a")
    fleet.advance(5.6)
    assert fleet.guard.candidates("m") == ["b"]
    for _ in range(2):
        assert fleet.guard.probes_due() == ["a"]
        slot = fleet.guard.probe_slot("a")
        assert slot is not None
        assert fleet.guard.probe_slot("a") is None
        with slot:
            slot.record(Outcome.ANSWERED)
        fleet.advance(0.5)
    assert not fleet.guard.is_ejected("a")


def test_no_ticket_is_asked_for_without_a_slot_to_use_it_on() -> None:
    fleet = Fleet(deployment("a", slots=2), deployment("b"))
    slots = _busy(fleet, "a", 2)
    trip = Trip("a", 0, Cause.CONSECUTIVE, OpenTime(base_s=0.5, cap_s=1, forget_s=60))
    fleet.store.breakers.trip(trip, fleet.clock.now)
    fleet.calls.clear()
    fleet.advance(3)
    assert not any(isinstance(call, ProbeAsk) for call in fleet.calls)
    slots[0].release()
    fleet.settle()
    assert any(isinstance(call, ProbeAsk) for call in fleet.calls)


def test_with_a_canary_and_all_ejected_requests_are_probes_too() -> None:
    fleet = Fleet(deployment("a"), canary=True)
    fail(fleet.guard, "a")
    fleet.advance(6)
    assert admit(fleet.guard, "a").ticket is not None


# --- choosing ---


def test_full_deployments_are_offered_last() -> None:
    fleet = Fleet(deployment("a", slots=2), deployment("b", slots=50))
    _busy(fleet, "a", 2)
    assert fleet.guard.candidates("m") == ["b", "a"]


def test_the_faster_deployment_is_offered_first_until_it_is_busier() -> None:
    fleet = Fleet(deployment("fast", slots=10), deployment("slow", slots=10))
    for name, seconds in (("fast", 0.1), ("slow", 0.15)):
        for _ in range(5):
            with admit(fleet.guard, name) as slot:
                fleet.clock.now += seconds
                slot.first_token()
    fleet.advance(2)
    assert fleet.guard.candidates("m")[0] == "fast"
    _busy(fleet, "fast", 9)
    assert fleet.guard.candidates("m")[0] == "slow"


def test_slow_is_not_dead() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    for _ in range(20):
        with admit(fleet.guard, "a") as slot:
            fleet.clock.now += 110
            fleet.settle()
            slot.first_token()
            slot.record(Outcome.ANSWERED)
    assert fleet.guard.candidates("m") == ["b", "a"]


def test_a_model_nobody_serves_has_no_candidates() -> None:
    fleet = Fleet(deployment("a"))
    assert fleet.guard.candidates("other") == []


def test_a_deployment_that_moves_leaves_its_breaker_behind_on_every_replica() -> None:
    fleet = Fleet(deployment("a"), deployment("b"), replicas=2)
    fail(fleet.guard, "a", 5)
    fleet.advance(1)
    assert [guard.is_ejected("a") for guard in fleet.guards] == [True, True]
    moved = replace(deployment("a"), base_url="http://127.0.0.1:2/v1")
    for guard in fleet.guards:
        guard.configure([moved, deployment("b")])
    fleet.settle()
    fleet.advance(3)  # the store's record is read again, and is of the old address
    assert [guard.is_ejected("a") for guard in fleet.guards] == [False, False]
    fail(fleet.guard, "a", 5)
    fleet.settle()
    fleet.advance(3)
    assert fleet.guard.is_ejected("a")


def test_a_slot_knows_whether_anybody_was_answered_since_it_was_taken() -> None:
    fleet = Fleet(deployment("a", slots=4))
    before, slot, other = _busy(fleet, "a", 3)
    assert not slot.has_seen_life
    other.record(Outcome.FAILED)
    assert not slot.has_seen_life
    before.record(Outcome.ANSWERED)
    assert slot.has_seen_life


def test_a_deployment_is_near_the_best_up_to_half_of_its_slots() -> None:
    fleet = Fleet(deployment("a", slots=4), deployment("b", slots=4))
    for name in "ab":
        slots = _busy(fleet, name, 4)
        for slot in slots:
            slot.first_token()
            slot.release()
    near = []
    for _ in range(4):
        near.append(fleet.guard.is_near("a", "b"))
        admit(fleet.guard, "a")
    assert near == [True, True, True, False]
    assert not fleet.guard.is_near("a", "b")  # it is full
    assert fleet.guard.is_near("b", "a")
    assert not fleet.guard.is_near("gone", "b")


# --- waiting ---


def _waiter(fleet: Fleet, got: list[Slot | Refusal], priority: Priority) -> Waiter | Refusal:
    return fleet.guard.wait("m", priority, got.append)


def _worn_in(fleet: Fleet, slots: int, seconds: float) -> list[Slot]:
    """All slots taken, and known to be held for so long."""
    for slot in _busy(fleet, "a", slots):
        fleet.clock.now += seconds / slots
        slot.release()
    return _busy(fleet, "a", slots)


def test_who_waits_gets_the_next_free_slot() -> None:
    fleet = Fleet(deployment("a", slots=2))
    slots = _worn_in(fleet, 2, 0.5)
    got: list[Slot | Refusal] = []
    assert isinstance(_waiter(fleet, got, Priority.INTERACTIVE), Waiter)
    assert fleet.guard.waiting("m") == 1
    slots[0].release()
    assert isinstance(got[0], Slot)
    assert fleet.guard.status()[0].in_flight == 2


def test_interactive_requests_are_served_before_batch_that_came_first() -> None:
    fleet = Fleet(deployment("a", slots=4))
    slots = _worn_in(fleet, 4, 0.2)
    batch: list[Slot | Refusal] = []
    interactive: list[Slot | Refusal] = []
    _waiter(fleet, batch, Priority.BATCH)
    _waiter(fleet, interactive, Priority.INTERACTIVE)
    slots[0].release()
    assert len(interactive) == 1
    assert batch == []


def test_an_answer_that_has_begun_waits_before_newcomers_and_however_long_it_takes() -> None:
    fleet = Fleet(deployment("a", slots=1))
    slots = _worn_in(fleet, 1, 0.5)
    newcomer: list[Slot | Refusal] = []
    begun: list[list[Slot | Refusal]] = [[], []]
    assert isinstance(_waiter(fleet, newcomer, Priority.INTERACTIVE), Waiter)
    for got in begun:
        waiter = fleet.guard.wait("m", Priority.INTERACTIVE, got.append, begun=True)
        assert isinstance(waiter, Waiter)
    assert isinstance(_waiter(fleet, [], Priority.INTERACTIVE), Refusal)  # 3 are before it
    slots[0].release()
    assert isinstance(begun[0][0], Slot)
    assert (begun[1], newcomer) == ([], [])
    begun[0][0].release()
    assert isinstance(begun[1][0], Slot)
    assert newcomer == []


def test_an_answer_that_has_begun_takes_nobodys_turn() -> None:
    fleet = Fleet(deployment("a", slots=1))
    _worn_in(fleet, 1, 30.0)
    got: list[Slot | Refusal] = []
    for _ in range(20):
        fleet.guard.wait("m", Priority.INTERACTIVE, got.append, begun=True)
    fleet.advance(2.0)
    assert [type(each) for each in got] == [Refusal] * 20
    told = _waiter(fleet, [], Priority.INTERACTIVE)
    assert isinstance(told, Refusal)
    assert told.retry_after_s < 40  # the twenty would have promised ten minutes


def _fill_with_batch(fleet: Fleet, slots: int) -> list[Slot]:
    """As many batch requests as there is room for."""
    taken: list[Slot] = []
    for _ in range(8 * slots):
        slot = fleet.guard.admit("a", Priority.BATCH)
        if isinstance(slot, Slot):
            taken.append(slot)
        fleet.advance(0.25)
    return taken


@pytest.mark.parametrize(("slots", "replicas"), [(1, 1), (1, 3), (2, 2), (3, 3)])
def test_few_slots_serve_batch_when_nobody_else_comes(slots: int, replicas: int) -> None:
    fleet = Fleet(deployment("a", slots=slots), replicas=replicas)
    for _ in range(5):  # a client that comes again when it is told to
        for guard in fleet.guards:
            guard.admit("a", Priority.BATCH)
        fleet.advance(1.0)
    assert sum(guard.status()[0].batch_in_flight for guard in fleet.guards) == 1


@pytest.mark.parametrize("slots", [3, 4, 12])
def test_batch_of_all_replicas_leaves_a_fifth_of_a_deployment(slots: int) -> None:
    fleet = Fleet(deployment("a", slots=slots), replicas=3)
    for _ in range(20):
        for guard in fleet.guards:
            for _ in range(slots):
                guard.admit("a", Priority.BATCH)
        fleet.advance(1.0)
        running = sum(guard.status()[0].batch_in_flight for guard in fleet.guards)
        assert running <= batch_part(slots)
    assert running == batch_part(slots)


def test_what_interactive_requests_may_grow_by_leaves_batch_a_slot() -> None:
    fleet = Fleet(deployment("a", slots=2))
    admit(fleet.guard, "a").release()
    got: list[Slot | Refusal] = []
    assert isinstance(fleet.guard.admit("a", Priority.BATCH), Refusal)
    assert isinstance(_waiter(fleet, got, Priority.BATCH), Waiter)
    fleet.advance(0.5)
    assert isinstance(got[0], Slot)
    admit(fleet.guard, "a")


def test_batch_that_has_all_it_may_have_takes_no_growth_from_interactive_requests() -> None:
    fleet = Fleet(deployment("a", slots=10))
    assert len(_fill_with_batch(fleet, 10)) == 8
    admit(fleet.guard, "a")
    got: list[Slot | Refusal] = []
    assert isinstance(fleet.guard.admit("a"), Refusal)  # it was not leased yet
    assert isinstance(_waiter(fleet, got, Priority.INTERACTIVE), Waiter)
    fleet.advance(0.25)
    assert isinstance(got[0], Slot)


def test_batch_does_not_wait_for_slots_that_only_interactive_requests_can_get() -> None:
    fleet = Fleet(deployment("a", slots=10))
    _fill_with_batch(fleet, 10)
    assert isinstance(fleet.guard.admit("a", Priority.BATCH), Refusal)
    refusal = _waiter(fleet, [], Priority.BATCH)
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s >= 1


def test_batch_in_line_is_not_in_the_way_of_interactive_requests() -> None:
    fleet = Fleet(deployment("a", slots=4))
    _busy(fleet, "a", 1)
    fleet.store_up = False  # nothing more is leased meanwhile
    batch: list[Slot | Refusal] = []
    interactive: list[Slot | Refusal] = []
    while isinstance(_waiter(fleet, batch, Priority.BATCH), Waiter):
        pass
    while not isinstance(fleet.guard.admit("a"), Refusal):
        pass
    assert isinstance(_waiter(fleet, interactive, Priority.INTERACTIVE), Waiter)
    fleet.store_up = True
    fleet.advance(0.5)
    assert isinstance(interactive[0], Slot)


def test_batch_does_not_take_what_an_interactive_request_waits_for() -> None:
    fleet = Fleet(deployment("a", slots=4))
    slots = _worn_in(fleet, 4, 0.2)
    got: list[Slot | Refusal] = []
    _waiter(fleet, got, Priority.INTERACTIVE)
    lease = fleet.guard._deployments["a"].lease
    lease.granted, lease.batch = 6, 4  # as in the moment before the line is served
    assert isinstance(fleet.guard.admit("a", Priority.BATCH), Refusal)
    slots[0].release()
    assert isinstance(got[0], Slot)
    assert isinstance(fleet.guard.admit("a", Priority.BATCH), Slot)


def test_batch_is_told_to_come_again_when_interactive_wants_are_counted_anew() -> None:
    fleet = Fleet(deployment("a", slots=4))
    for slot in _worn_in(fleet, 4, 0.2):
        slot.release()
    refusal = fleet.guard.admit("a", Priority.BATCH)
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == LeaseSettings().ttl_s
    fleet.advance(2 * LeaseSettings().ttl_s)
    got: list[Slot | Refusal] = []
    assert isinstance(fleet.guard.admit("a", Priority.BATCH), Refusal)
    assert isinstance(_waiter(fleet, got, Priority.BATCH), Waiter)
    fleet.advance(0.5)
    assert isinstance(got[0], Slot)


def test_nobody_waits_when_it_does_not_pay() -> None:
    fleet = Fleet(deployment("a", slots=2))
    _worn_in(fleet, 2, 60)
    got: list[Slot | Refusal] = []
    refusal = _waiter(fleet, got, Priority.INTERACTIVE)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NOT_WORTH_WAITING
    assert refusal.retry_after_s > 1


def test_the_queue_is_as_long_as_what_can_be_served_within_a_second() -> None:
    fleet = Fleet(deployment("a", slots=4))
    _worn_in(fleet, 4, 1.0)
    got: list[Slot | Refusal] = []
    joined = [_waiter(fleet, got, Priority.INTERACTIVE) for _ in range(100)]
    waiting = sum(isinstance(each, Waiter) for each in joined)
    assert 1 <= waiting <= 12


def test_nobody_waits_longer_than_the_longest_wait() -> None:
    fleet = Fleet(deployment("a", slots=2))
    _worn_in(fleet, 2, 0.5)
    got: list[Slot | Refusal] = []
    _waiter(fleet, got, Priority.INTERACTIVE)
    assert fleet.guard.next_due() <= fleet.clock.now + 1
    fleet.advance(1.01)
    assert isinstance(got[0], Refusal)
    assert got[0].reason is Reason.WAITED


def test_long_answers_in_flight_are_not_taken_for_short_ones() -> None:
    fleet = Fleet(deployment("a", slots=4))
    _worn_in(fleet, 4, 0.05)  # by answers of one token
    fleet.clock.now += 20
    fleet.settle()
    got: list[Slot | Refusal] = []
    refusal = _waiter(fleet, got, Priority.INTERACTIVE)
    assert isinstance(refusal, Refusal)
    assert 5 <= refusal.retry_after_s <= 5.6  # four slots, of 20 s more each


def test_one_long_answer_makes_nobody_else_wait() -> None:
    fleet = Fleet(deployment("a", slots=4))
    long, *short = _worn_in(fleet, 4, 0.2)
    for slot in short:
        slot.release()
    fleet.clock.now += 3600
    fleet.settle()
    _busy(fleet, "a", 3)
    assert long.started_at < fleet.clock.now - 3600
    got: list[Slot | Refusal] = []
    assert isinstance(_waiter(fleet, got, Priority.INTERACTIVE), Waiter)


def test_who_is_sent_away_is_told_to_come_when_it_is_his_turn() -> None:
    fleet = Fleet(deployment("a", slots=8))
    _worn_in(fleet, 8, 0.8)
    got: list[Slot | Refusal] = []
    answers = [_waiter(fleet, got, Priority.INTERACTIVE) for _ in range(200)]
    refused = [each for each in answers if isinstance(each, Refusal)]
    times = [each.retry_after_s for each in refused]
    per_second = len(answers) / max(times)  # slots that become free
    assert 1 < min(times) < 2
    assert 5 < per_second < 9
    # as many come in a second as slots become free, not all two hundred in one
    assert max(Counter(int(seconds) for seconds in times).values()) <= 2 * per_second


def test_a_turn_whose_owner_does_not_come_holds_up_nobody() -> None:
    fleet = Fleet(deployment("a", slots=8))
    slots = _worn_in(fleet, 8, 0.8)
    got: list[Slot | Refusal] = []
    for _ in range(200):
        _waiter(fleet, got, Priority.INTERACTIVE)
    fleet.advance(2)  # those in the line have gone, as all the others
    for slot in slots:
        slot.release()
    fleet.advance(1)
    _busy(fleet, "a", 8)
    answers = [_waiter(fleet, got, Priority.INTERACTIVE) for _ in range(20)]
    assert min(each.retry_after_s for each in answers if isinstance(each, Refusal)) < 3


def test_nobody_is_sent_away_for_longer_than_clients_heed() -> None:
    fleet = Fleet(deployment("a", slots=8))
    _worn_in(fleet, 8, 0.8)
    got: list[Slot | Refusal] = []
    answers = [_waiter(fleet, got, Priority.INTERACTIVE) for _ in range(5000)]
    times = [each.retry_after_s for each in answers if isinstance(each, Refusal)]
    assert max(times) <= 66
    assert max(Counter(int(seconds) for seconds in times).values()) < 200


def test_who_leaves_is_not_served() -> None:
    fleet = Fleet(deployment("a", slots=2))
    slots = _worn_in(fleet, 2, 0.5)
    got: list[Slot | Refusal] = []
    waiter = _waiter(fleet, got, Priority.INTERACTIVE)
    assert isinstance(waiter, Waiter)
    assert fleet.guard.leave("m", waiter)
    assert not fleet.guard.leave("m", waiter)
    slots[0].release()
    assert got == []


def test_who_can_be_served_by_few_waits_for_those_and_holds_nobody_up() -> None:
    fleet = Fleet(deployment("a", slots=1), deployment("b", slots=1))
    for name in "ab":
        slot = admit(fleet.guard, name)
        fleet.clock.now += 0.1
        slot.release()
    slots = {name: admit(fleet.guard, name) for name in "ab"}
    got: dict[str, list[Slot | Refusal]] = {"only a": [], "any": []}
    for who, among in (("only a", {"a"}), ("any", {"a", "b", "gone"})):
        waiter = fleet.guard.wait("m", Priority.INTERACTIVE, got[who].append, among)
        assert isinstance(waiter, Waiter)
    slots["b"].release()
    assert got["only a"] == []
    assert isinstance(got["any"][0], Slot)
    slots["a"].release()
    assert isinstance(got["only a"][0], Slot)
    assert got["only a"][0].deployment == "a"
    assert fleet.guard.waiting("m") == 0


def test_a_wait_for_few_is_as_long_as_those_take() -> None:
    fleet = Fleet(deployment("slow", slots=1), deployment("fast", slots=1))
    for name, seconds in (("slow", 30), ("fast", 0.1)):
        slot = admit(fleet.guard, name)
        fleet.clock.now += seconds
        slot.release()
        fleet.settle()
    for name in ("slow", "fast"):
        admit(fleet.guard, name)
    got: list[Slot | Refusal] = []
    refusal = fleet.guard.wait("m", Priority.INTERACTIVE, got.append, {"slow"})
    assert isinstance(refusal, Refusal)
    assert 30 <= refusal.retry_after_s <= 33.1
    assert isinstance(fleet.guard.wait("m", Priority.INTERACTIVE, got.append, {"fast"}), Waiter)


def test_a_replica_that_has_just_started_waits_for_its_first_lease() -> None:
    fleet = Fleet()
    fleet.guard.configure([deployment("a")])
    got: list[Slot | Refusal] = []
    assert isinstance(_waiter(fleet, got, Priority.INTERACTIVE), Waiter)
    fleet.settle()
    assert isinstance(got[0], Slot)


# --- retries ---


def test_retries_end_with_the_budget() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    allowed = sum(fleet.guard.may_retry("m", "a", moved=False) for _ in range(100))
    assert allowed == 20
    assert not fleet.guard.may_hedge("m")


def test_hedges_draw_from_the_same_budget() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    assert sum(fleet.guard.may_hedge("m") for _ in range(100)) == 20
    assert not fleet.guard.may_retry("m", "a", moved=False)


def test_every_request_can_leave_a_dead_deployment_once_whatever_the_budget() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fail(fleet.guard, "a")
    assert all(fleet.guard.may_retry("m", "a", moved=False) for _ in range(200))
    assert fleet.guard.may_hedge("m")  # nothing was spent


def test_there_is_no_hedge_before_enough_is_known() -> None:
    fleet = Fleet(deployment("a"))
    assert fleet.guard.hedge_after("a") is None
    for _ in range(100):
        with admit(fleet.guard, "a") as slot:
            fleet.clock.now += 0.2
            slot.first_token()
    fleet.advance(1.1)
    assert fleet.guard.hedge_after("a") == pytest.approx(0.2, rel=0.2)


# --- a fleet that changes ---


def test_a_drained_deployment_gets_no_new_requests_and_finishes_the_old() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    slot = admit(fleet.guard, "a")
    fleet.guard.configure([deployment("b")])
    assert fleet.guard.candidates("m") == ["b"]
    assert isinstance(fleet.guard.admit("a"), Refusal)
    assert fleet.guard.status()[0].draining
    slot.release()
    assert [status.id for status in fleet.guard.status()] == ["b"]


def test_the_block_of_a_removed_deployment_goes_back_at_once() -> None:
    fleet = Fleet(deployment("a"), replicas=2)
    fleet.guard.configure([])
    fleet.settle()
    other = fleet.guards[1]
    for _ in range(20):
        other.admit("a")
        fleet.advance(0.2)
    assert other.status()[0].in_flight == 4


def test_a_deployment_can_come_back_while_it_drains_and_after() -> None:
    fleet = Fleet(deployment("a"))
    slot = admit(fleet.guard, "a")
    fleet.guard.configure([])
    fleet.guard.configure([deployment("a")])
    fleet.settle()
    admit(fleet.guard, "a").release()
    slot.release()
    fleet.guard.configure([])
    fleet.settle()
    fleet.guard.configure([deployment("a")])
    fleet.settle()
    admit(fleet.guard, "a")


def test_a_deployment_that_left_and_came_back_at_once_keeps_the_block_it_asks_for_anew() -> None:
    fleet = Fleet(deployment("a", slots=4), replicas=2)
    fleet.guard.configure([])
    fleet.guard.configure([deployment("a", slots=4)])
    fleet.settle()  # the old block goes back, the new one is asked for: in one breath
    assert fleet.store.pool("a", fleet.clock.now).leases(fleet.clock.now).keys() == {"r0", "r1"}


def test_a_deployment_may_grow_and_shrink() -> None:
    fleet = Fleet(deployment("a", slots=2))
    _busy(fleet, "a", 2)
    fleet.guard.configure([deployment("a", slots=6)])
    _busy(fleet, "a", 4)
    fleet.guard.configure([deployment("a", slots=3)])
    assert isinstance(fleet.guard.admit("a"), Refusal)


def test_a_deployment_cannot_change_its_model() -> None:
    fleet = Fleet(deployment("a"))
    with pytest.raises(ValueError, match="another model needs another id"):
        fleet.guard.configure([deployment("a", model="other")])


def test_a_fleet_that_is_refused_changes_nothing() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    before = [(each.id, each.slots, each.draining) for each in fleet.guard.status()]
    with pytest.raises(ValueError, match="another model"):
        fleet.guard.configure([deployment("c"), deployment("b", model="other")])
    assert [(each.id, each.slots, each.draining) for each in fleet.guard.status()] == before


def test_a_deployment_that_is_configured_as_draining_is_not_offered() -> None:
    fleet = Fleet(deployment("a"), deployment("b"))
    fleet.guard.configure([replace(deployment("a"), draining=True), deployment("b")])
    assert fleet.guard.candidates("m") == ["b"]
    fleet.guard.configure([deployment("a"), deployment("b")])
    assert set(fleet.guard.candidates("m")) == {"a", "b"}


def test_a_replica_that_stops_gives_everything_back() -> None:
    fleet = Fleet(deployment("a", slots=4), replicas=2)
    leaving, staying = fleet.guards
    for _ in range(10):
        leaving.admit("a")
        fleet.advance(0.2)
    fleet._perform(leaving.farewell())
    fleet.guards = [staying]
    for _ in range(20):
        staying.admit("a")
        fleet.advance(0.2)
    assert staying.status()[0].in_flight == 4


def test_who_has_no_slot_is_told_when_the_block_that_is_in_the_way_ends() -> None:
    fleet = Fleet(deployment("a", slots=1), replicas=2)
    admit(fleet.guard, "a")
    fleet.guards[1].began("m")
    fleet.settle()
    refusal = fleet.guards[1].admit("a")
    assert isinstance(refusal, Refusal)
    fleet.advance(1)
    later = fleet.guards[1].admit("a")
    assert isinstance(later, Refusal)
    assert 1 < later.retry_after_s <= LeaseSettings().ttl_s


def test_while_the_store_learns_who_is_refused_is_told_when_that_ends() -> None:
    fleet = Fleet()
    fleet.store = MemoryStore(learning_s=8.0)
    fleet.guard.configure([deployment("a", slots=8)])
    fleet.settle()
    for _ in range(6):
        fleet.guard.admit("a")
        fleet.advance(0.5)  # the store is asked, and has no more
    refusal = fleet.guard.admit("a")
    assert isinstance(refusal, Refusal)
    assert refusal.retry_after_s == pytest.approx(8.0 - 3.0, abs=1.1)
