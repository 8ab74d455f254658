"""Blocks of slots: what every store must do."""

from __future__ import annotations

import asyncio

from prime_inference.ports.coordination import Coordination
from tests.conformance.asks import LATER, block, granted
from tests.conformance.conftest import MakeStore


async def test_a_single_replica_gets_what_it_wants_up_to_the_capacity(store: Coordination) -> None:
    assert await granted(store, block("a", 5)) == 5
    assert await granted(store, block("a", 50)) == 8


async def test_a_second_replica_gets_nothing_that_the_first_still_has(store: Coordination) -> None:
    await granted(store, block("a", 8))
    assert await granted(store, block("b", 8)) == 0


async def test_a_cut_block_is_free_only_when_its_holder_says_that_it_knows(
    store: Coordination,
) -> None:
    await granted(store, block("a", 8))
    await granted(store, block("b", 8))
    assert await granted(store, block("a", 8, has=8)) == 4  # this answer may be lost
    assert await granted(store, block("b", 8)) == 0
    assert await granted(store, block("a", 8, has=4)) == 4
    assert await granted(store, block("b", 8)) == 4


async def test_requests_in_flight_are_counted_beyond_the_block(store: Coordination) -> None:
    await granted(store, block("a", 8))
    await granted(store, block("b", 8))
    await granted(store, block("a", 8, has=4, in_flight=7))
    assert await granted(store, block("b", 8)) == 1


async def test_an_old_ask_that_arrives_late_changes_nothing(store: Coordination) -> None:
    await granted(store, block("a", 8, sequence=10_000_001))
    late = block("a", 1, sequence=10_000_000)
    assert await granted(store, late) == 8
    assert await granted(store, block("b", 8)) == 0


async def test_the_same_ask_twice_gives_the_same_grant(store: Coordination) -> None:
    ask = block("a", 3)
    first = await store.lease_blocks([ask])
    assert await store.lease_blocks([ask]) == first


async def test_a_renewed_lease_keeps_its_epoch_and_a_new_one_gets_a_higher(
    store: Coordination,
) -> None:
    (first,) = await store.lease_blocks([block("a", 3)])
    (renewed,) = await store.lease_blocks([block("a", 3, has=3)])
    (other,) = await store.lease_blocks([block("b", 3)])
    assert renewed.epoch == first.epoch
    assert other.epoch > first.epoch


async def test_a_lease_that_is_not_renewed_ends_and_is_never_revived(store: Coordination) -> None:
    (before,) = await store.lease_blocks([block("a", 8, ttl_s=0.05)])
    assert await granted(store, block("b", 8)) == 0
    await asyncio.sleep(0.1)
    assert await granted(store, block("b", 8)) == 8
    (after,) = await store.lease_blocks([block("a", 8, has=0)])
    assert after.epoch > before.epoch
    assert after.granted == 0


async def test_a_returned_block_is_free_at_once(store: Coordination) -> None:
    await granted(store, block("a", 8))
    await store.return_blocks("a", ["d", "unknown"], LATER)
    assert await granted(store, block("b", 8)) == 8


async def test_a_holder_can_return_only_its_own_block(store: Coordination) -> None:
    await granted(store, block("a", 8))
    await store.return_blocks("b", ["d"], LATER)
    assert await granted(store, block("b", 8)) == 0


async def test_a_return_that_comes_late_does_not_end_a_newer_lease(store: Coordination) -> None:
    await granted(store, block("a", 8, sequence=10_000_001))
    await store.return_blocks("a", ["d"], sequence=10_000_000)
    assert await granted(store, block("b", 8)) == 0


async def test_interactive_wants_are_served_before_batch(store: Coordination) -> None:
    await granted(store, block("a", 0, batch=8))
    await granted(store, block("b", 5))
    (cut,) = await store.lease_blocks([block("a", 0, batch=8, has=6)])
    assert (cut.granted, cut.batch) == (3, 3)


async def test_batch_gets_at_most_four_fifths(store: Coordination) -> None:
    (grant,) = await store.lease_blocks([block("a", 0, batch=100, capacity=10)])
    assert (grant.granted, grant.batch) == (8, 8)


async def test_all_holders_together_run_four_fifths_of_batch_at_most(store: Coordination) -> None:
    (first,) = await store.lease_blocks([block("a", 0, batch=8, capacity=10)])
    assert (first.granted, first.batch) == (8, 8)
    (late,) = await store.lease_blocks([block("b", 0, batch=8, capacity=10)])
    assert (late.granted, late.batch) == (0, 0)
    running = block("a", 0, batch=8, has=8, has_batch=8, in_flight=8, capacity=10)
    (cut,) = await store.lease_blocks([running])
    assert cut.batch == 4
    (late,) = await store.lease_blocks([block("b", 1, batch=8, capacity=10)])
    assert (late.granted, late.batch) == (1, 0)
    await store.lease_blocks([block("a", 0, batch=8, has=4, has_batch=4, in_flight=4, capacity=10)])
    (late,) = await store.lease_blocks([block("b", 1, batch=8, has=1, capacity=10)])
    assert (late.granted, late.batch) == (5, 4)


async def test_batch_that_runs_over_its_part_takes_nothing_from_interactive_wants(
    store: Coordination,
) -> None:
    await store.lease_blocks([block("a", 0, batch=8, has_batch=8, capacity=12)])
    await store.lease_blocks([block("a", 0, batch=8, has_batch=8, in_flight=8, capacity=8)])
    (grant,) = await store.lease_blocks([block("b", 3, capacity=12)])
    assert (grant.granted, grant.batch) == (0, 0)  # nothing is free
    await store.lease_blocks([block("a", 0, has_batch=8, in_flight=5, capacity=8)])
    assert await granted(store, block("b", 3, capacity=12)) == 3


async def test_batch_gets_the_only_slot_if_nobody_else_wants_it(store: Coordination) -> None:
    (grant,) = await store.lease_blocks([block("a", 0, batch=5, capacity=1)])
    assert (grant.granted, grant.batch) == (1, 1)


async def test_what_is_granted_for_batch_is_cut_before_what_is_for_interactive(
    store: Coordination,
) -> None:
    await granted(store, block("a", 6))
    (grant,) = await store.lease_blocks([block("b", 1, batch=4)])
    assert (grant.granted, grant.batch) == (2, 1)


async def test_the_smaller_capacity_counts_while_replicas_disagree(store: Coordination) -> None:
    await granted(store, block("a", 2, capacity=4))
    assert await granted(store, block("b", 8, capacity=8)) == 2


async def test_every_holder_is_counted(store: Coordination) -> None:
    for expected, holder in enumerate("abc", start=1):
        (grant,) = await store.lease_blocks([block(holder, 1)])
        assert grant.holders == expected


async def test_pools_do_not_see_each_other(store: Coordination) -> None:
    asks = [block("a", 8, pool="one"), block("b", 8, pool="two{}%")]
    assert [grant.granted for grant in await store.lease_blocks(asks)] == [8, 8]


async def test_many_pools_are_leased_and_returned_together(store: Coordination) -> None:
    pools = [f"pool-{number}" for number in range(150)]
    first = await store.lease_blocks(
        [block("a", number % 9, pool=pool) for number, pool in enumerate(pools)]
    )
    assert [grant.granted for grant in first] == [number % 9 for number in range(150)]
    assert {grant.holders for grant in first} == {1}
    await store.return_blocks("a", pools, LATER)
    second = await store.lease_blocks([block("b", 8, pool=pool) for pool in pools])
    assert {grant.granted for grant in second} == {8}


async def test_a_holder_at_rest_is_counted_and_takes_nothing(store: Coordination) -> None:
    await granted(store, block("a", 8))
    await granted(store, block("a", 0))
    (grant,) = await store.lease_blocks([block("b", 8)])
    assert (grant.granted, grant.holders) == (8, 2)


async def test_a_holder_at_rest_that_knows_of_fewer_slots_is_listened_to(
    store: Coordination,
) -> None:
    await granted(store, block("a", 0, capacity=3))
    (grant,) = await store.lease_blocks([block("b", 8)])
    assert (grant.granted, grant.capacity) == (3, 3)


async def test_what_a_holder_keeps_is_granted_to_nobody_else(store: Coordination) -> None:
    for holder in "ab":
        (grant,) = await store.lease_blocks([block(holder, 0, keep=2)])
        assert (grant.granted, grant.safe) == (0, 2)
    assert await granted(store, block("c", 8)) == 4


async def test_a_holder_keeps_no_more_than_its_part_and_than_is_free(store: Coordination) -> None:
    await granted(store, block("a", 5))
    (grant,) = await store.lease_blocks([block("b", 0, keep=8)])
    assert grant.safe == 3
    (grant,) = await store.lease_blocks([block("b", 0, keep=8, safe=3, capacity=16)])
    assert grant.safe == 3  # of 8 slots: the least counts
    await store.lease_blocks([block("a", 1, has=1)])
    (grant,) = await store.lease_blocks([block("b", 0, keep=8, safe=3)])
    assert grant.safe == 4


async def test_a_holder_keeps_an_eighth_of_its_part_and_one_slot_at_least_where_others_lack_some(
    store: Coordination,
) -> None:
    await store.lease_blocks([block("a", 0, keep=4)])
    assert await granted(store, block("b", 8)) == 4
    (grant,) = await store.lease_blocks([block("a", 0, keep=4, safe=4)])
    assert grant.safe == 1
    assert await granted(store, block("b", 8, has=4)) == 4  # that answer may be lost
    await store.lease_blocks([block("a", 0, keep=4, safe=1)])
    assert await granted(store, block("b", 8, has=4)) == 7


async def test_who_may_have_been_kept_from_asking_is_waited_for_once(store: Coordination) -> None:
    await store.lease_blocks([block("a", 5, ttl_s=1.2)])
    await asyncio.sleep(1.3)  # nobody is heard: the store may have been away
    assert await granted(store, block("b", 8)) == 3
    assert await granted(store, block("a", 5, in_flight=5)) == 4
    await asyncio.sleep(0.1)
    assert await granted(store, block("b", 8, has=3)) == 3


async def test_it_is_told_when_there_may_be_more(
    store: Coordination, empty_store: MakeStore
) -> None:
    await granted(store, block("a", 8, ttl_s=5))
    (grant,) = await store.lease_blocks([block("b", 1, ttl_s=10)])
    assert 0 < grant.more_in_s <= 5
    (grant,) = await (await empty_store(60)).lease_blocks([block("a", 8)])
    assert 50 < grant.more_in_s < 60.001  # the memory's clock is a float


async def test_who_knows_what_is_safe_is_no_newcomer_to_an_empty_store(
    empty_store: MakeStore,
) -> None:
    store = await empty_store(60)
    (grant,) = await store.lease_blocks([block("a", 8, safe=3, keep=3)])
    assert (grant.granted, grant.safe) == (3, 3)
    assert await granted(store, block("old", 8, has=5)) == 5
    assert await granted(store, block("new", 8)) == 0


async def test_a_store_that_has_just_started_grants_what_replicas_say_they_have(
    empty_store: MakeStore,
) -> None:
    store = await empty_store(60)
    (grant,) = await store.lease_blocks([block("a", 8, has=6, in_flight=5)])
    assert (grant.granted, grant.learning) == (6, True)


async def test_newcomers_to_an_empty_store_get_a_quarter_together(empty_store: MakeStore) -> None:
    store = await empty_store(60)
    assert await granted(store, block("new", 8)) == 2
    assert await granted(store, block("newer", 8)) == 0
    assert await granted(store, block("old", 8, has=6)) == 6


async def test_claims_beyond_the_capacity_are_cut(empty_store: MakeStore) -> None:
    store = await empty_store(60)
    assert await granted(store, block("a", 8, has=6)) == 6
    assert await granted(store, block("b", 8, has=6)) == 2


async def test_learning_ends(empty_store: MakeStore) -> None:
    store = await empty_store(0.1)
    assert await granted(store, block("a", 8)) == 2
    await asyncio.sleep(0.15)
    assert await granted(store, block("a", 8, has=2)) == 8


async def test_a_pool_whose_leases_have_all_ended_does_not_learn_again(
    empty_store: MakeStore,
) -> None:
    store = await empty_store(0.05)
    await granted(store, block("a", 8, ttl_s=0.05))
    await asyncio.sleep(0.1)
    assert await granted(store, block("b", 8)) == 8
