"""A replica's side of a block lease."""

from __future__ import annotations

import itertools
import math

import pytest

from prime_inference.ports.coordination import BlockAsk, BlockGrant
from prime_inference.reliability.block_lease import BlockLease
from prime_inference.reliability.settings import LeaseSettings

SETTINGS = LeaseSettings()
TTL = SETTINGS.ttl_s


@pytest.fixture
def lease() -> BlockLease:
    return BlockLease("d", "r1", 8, SETTINGS, itertools.count(1))


def _grant(
    granted: int, *, batch: int = 0, epoch: int = 1, holders: int = 2, safe: int = 0, slots: int = 0
) -> BlockGrant:
    return BlockGrant(epoch, granted, batch, holders, learning=False, safe=safe, capacity=slots)


def _leased(lease: BlockLease, granted: int, now: float = 100.0, in_flight: int = 0) -> BlockAsk:
    ask = lease.ask(in_flight, now)
    lease.accept(ask, _grant(granted), sent_at=now, now=now)
    return ask


def test_before_the_first_answer_there_is_nothing(lease: BlockLease) -> None:
    assert lease.limit(100) == 0
    assert not lease.lapsed(100)
    assert lease.ask_at <= 100


def test_the_lease_is_measured_from_the_ask_and_ends_early(lease: BlockLease) -> None:
    ask = lease.ask(0, now=100)
    lease.accept(ask, _grant(4), sent_at=100, now=103)
    assert lease.limit(109.7) == 4
    assert lease.limit(109.8) == lease.safe


@pytest.mark.parametrize(("granted", "safe", "limit"), [(6, 2, 6), (1, 2, 2), (0, 0, 0)])
def test_without_a_lease_there_is_what_the_store_grants_nobody_else(
    lease: BlockLease, granted: int, safe: int, limit: int
) -> None:
    ask = lease.ask(0, now=100)
    lease.accept(ask, _grant(granted, holders=3, safe=safe), sent_at=100, now=100)
    assert lease.limit(200) == limit
    lease.failed(lease.ask(0, now=200), now=200)
    assert lease.limit(201) == limit  # it gives nothing up that it could not have again


def test_what_is_safe_and_was_cut_is_confirmed_at_once(lease: BlockLease) -> None:
    lease.accept(lease.ask(0, now=100), _grant(1, safe=2), sent_at=100, now=100)
    ask = lease.ask(0, now=108)
    assert (ask.safe, ask.keep) == (1, 1)  # a part of three replicas', and half of it
    lease.accept(ask, _grant(0, safe=0), sent_at=108, now=108.1)
    assert lease.ask_at == 108.1


def test_nothing_is_counted_from_a_number_of_slots_that_others_do_not_know() -> None:
    lease = BlockLease("d", "r1", 16, SETTINGS, itertools.count(1))
    _leased(lease, 1)
    lease.resize(512)
    ask = lease.ask(0, now=101)
    assert (ask.capacity, ask.interactive, ask.keep) == (512, 1, 2)
    lease.accept(ask, _grant(1, slots=512), sent_at=101, now=101)
    assert lease.ask(0, now=110).interactive == 512 // 3 // 8


def test_a_replica_that_never_reached_the_store_assumes_some_others(lease: BlockLease) -> None:
    lease.failed(lease.ask(0, now=100), now=100)
    assert lease.limit(100) == 8 // SETTINGS.assumed_replicas


def test_who_asks_first_does_not_take_himself_to_be_alone(lease: BlockLease) -> None:
    for now, keep in ((100, 1), (108, 1), (161, 1), (170, 4)):
        ask = lease.ask(0, now)
        assert ask.keep == keep
        lease.accept(ask, _grant(1, holders=1), sent_at=now, now=now)


def test_more_replicas_than_slots_leave_one_each(lease: BlockLease) -> None:
    ask = lease.ask(0, now=100)
    lease.accept(ask, _grant(0, holders=50), sent_at=100, now=100)
    assert lease.limit(200) == 1


def test_only_one_ask_is_out_at_a_time(lease: BlockLease) -> None:
    ask = lease.ask(0, now=100)
    assert lease.ask_at == math.inf
    lease.failed(ask, now=100)
    assert 100 < lease.ask_at < 101


def test_an_answer_to_an_older_ask_is_ignored(lease: BlockLease) -> None:
    old = lease.ask(0, now=100)
    lease.failed(old, now=100)
    new = lease.ask(0, now=101)
    lease.accept(old, _grant(8), sent_at=100, now=101)
    assert lease.limit(101) == lease.safe
    lease.accept(new, _grant(3), sent_at=101, now=101)
    lease.accept(new, _grant(8), sent_at=101, now=101)
    assert lease.limit(101) == 3


def test_it_is_renewed_with_time_for_two_more_asks_before_it_ends(lease: BlockLease) -> None:
    _leased(lease, 2)
    now = lease.ask_at
    assert now == pytest.approx(100 + 0.85 * TTL)
    for _ in range(2):  # each is given up on after 100 ms at worst
        lease.failed(lease.ask(0, now), now + 0.1)
        now = lease.ask_at
        assert lease.limit(now) > 0
        assert now < lease.valid_until - 0.5


def test_a_lease_at_rest_holds_nothing_and_is_no_reason_to_worry(lease: BlockLease) -> None:
    _leased(lease, 4)
    ask = lease.ask(0, now=108, rest=True)
    assert (ask.interactive, ask.batch, ask.has, ask.in_flight) == (0, 0, 0, 0)
    assert ask.ttl_s == TTL  # what it keeps comes back as soon as that of others, if it dies
    assert lease.limit(108) == 0  # given up before it is said to be
    lease.accept(ask, _grant(0), sent_at=108, now=108)
    assert lease.ask_at == pytest.approx(108 + 0.85 * TTL)
    assert lease.limit(117) == 0
    assert lease.may_grow_by(117) == 8
    assert not lease.lapsed(117)
    assert not lease.ready


def test_a_lease_at_rest_is_woken_once(lease: BlockLease) -> None:
    _leased(lease, 4)
    lease.accept(lease.ask(0, now=108, rest=True), _grant(0), sent_at=108, now=108)
    lease.wake(120)
    assert lease.ask_at == 120
    ask = lease.ask(0, now=120)
    assert ask.interactive == 1
    lease.wake(121)
    assert lease.ask_at == math.inf
    lease.accept(ask, _grant(1), sent_at=120, now=120.1)
    assert lease.ready
    assert lease.limit(121) == 1


def test_a_lease_woken_as_it_goes_to_rest_asks_again_at_once(lease: BlockLease) -> None:
    _leased(lease, 4)
    resting = lease.ask(0, now=108, rest=True)
    lease.wake(108.01)
    lease.accept(resting, _grant(0), sent_at=108, now=108.02)
    assert lease.ask_at == 108.02
    assert not lease.ready


def test_who_is_woken_without_a_store_goes_by_the_safe_capacity(lease: BlockLease) -> None:
    _leased(lease, 4)
    lease.accept(
        lease.ask(0, now=108, rest=True), _grant(0, holders=4, safe=1), sent_at=108, now=108
    )
    lease.wake(120)
    lease.failed(lease.ask(0, now=120), now=120.05)
    assert lease.ready
    assert lease.limit(121) == lease.safe == 1
    assert lease.lapsed(121)


def test_it_is_unused_once_nobody_came_between_two_renewals(lease: BlockLease) -> None:
    lease.demand(1, 0, now=99)
    for now, unused in ((100, False), (109, False), (118, True)):
        assert lease.unused is unused
        _leased(lease, 2, now=now)


def test_a_part_is_kept_though_nobody_needs_it_unless_others_do() -> None:
    lease = BlockLease("d", "r1", 240, SETTINGS, itertools.count(1))
    ask = lease.ask(0, now=100)
    assert ask.interactive == 240 // 3 // 8
    lease.accept(ask, _grant(4, holders=3), sent_at=100, now=100)
    assert lease.ask(0, now=101).interactive == 1


def test_a_cut_is_confirmed_at_once(lease: BlockLease) -> None:
    lease.demand(6, 0, now=100)
    _leased(lease, 8)
    ask = lease.ask(6, now=103)
    lease.accept(ask, _grant(4), sent_at=103, now=103.1)
    assert lease.ask_at == 103.1
    assert lease.ask(6, now=103.1).has == 4


def test_what_is_not_wanted_is_given_up_before_it_is_said_to_be(lease: BlockLease) -> None:
    _leased(lease, 8)
    ask = lease.ask(0, now=103)
    assert ask.has == ask.interactive == 1
    assert lease.limit(103) == 1


def test_what_is_in_flight_is_not_given_up(lease: BlockLease) -> None:
    _leased(lease, 8)
    assert lease.ask(5, now=103).has == 5


def test_wants_are_the_peak_and_a_quarter_and_one(lease: BlockLease) -> None:
    lease.demand(4, 0, now=99)
    assert lease.ask(0, now=100).interactive == 6


def test_a_peak_is_remembered_for_one_renewal_and_then_forgotten(lease: BlockLease) -> None:
    lease.demand(4, 0, now=99)
    _leased(lease, 6)
    assert _leased(lease, 6, now=100 + 0.85 * TTL).interactive == 6
    assert _leased(lease, 6, now=100 + 1.7 * TTL).interactive == 1


def test_refused_requests_are_wanted_too(lease: BlockLease) -> None:
    _leased(lease, 1)
    for _ in range(4):
        lease.refused(1, 0, for_batch=False, now=101)
    assert lease.ask(1, now=101).interactive == math.ceil(5 * 1.25) + 1


def test_batch_is_wanted_apart_and_never_without_batch_requests(lease: BlockLease) -> None:
    assert lease.ask(0, now=100).batch == 0
    lease.failed(lease.ask(0, now=100), now=100)
    lease.refused(0, 1, for_batch=True, now=101)
    assert lease.ask(0, now=101).batch == 3


def test_a_full_block_asks_for_more_soon_but_not_in_a_burst(lease: BlockLease) -> None:
    lease.demand(1, 0, now=99)
    _leased(lease, 3)
    lease.demand(3, 0, now=100.05)
    assert lease.ask_at == pytest.approx(100 + SETTINGS.ask_gap_s)


def test_when_others_hold_the_slots_it_asks_more_slowly(lease: BlockLease) -> None:
    lease.demand(4, 0, now=99)
    ask = lease.ask(0, now=100)
    lease.accept(ask, _grant(2), sent_at=100, now=100)
    lease.refused(2, 0, for_batch=False, now=100.1)
    assert lease.ask_at == pytest.approx(100 + SETTINGS.contended_gap_s)
    assert lease.may_grow_by(100.1) == 0


def test_a_lease_that_was_granted_in_full_may_grow(lease: BlockLease) -> None:
    assert lease.may_grow_by(100) == 8
    _leased(lease, 1)
    assert lease.may_grow_by(101) == 7


def test_a_closing_deployment_wants_nothing(lease: BlockLease) -> None:
    lease.demand(4, 0, now=99)
    lease.close()
    assert lease.ask(2, now=100).interactive == 0


def test_a_smaller_deployment_is_a_smaller_block_at_once(lease: BlockLease) -> None:
    lease.demand(8, 0, now=99)
    _leased(lease, 8)
    lease.resize(3)
    assert lease.limit(101) == 3
    assert lease.ask_at <= 101


def test_the_number_of_replicas_rises_at_once_and_falls_after_a_minute(lease: BlockLease) -> None:
    for now, told, believed in ((100, 6, 6), (103, 1, 6), (150, 1, 6), (161, 1, 1), (164, 2, 2)):
        ask = lease.ask(0, now)
        lease.accept(ask, _grant(1, holders=told), sent_at=now, now=now)
        assert lease.replicas == believed
