"""Slots of reservations among those that everybody shares: what every store must do."""

from __future__ import annotations

from dataclasses import replace

from prime_inference.ports.coordination import BlockAsk, BlockGrant, Coordination
from tests.conformance.asks import LATER, block, granted, reserved
from tests.conformance.conftest import MakeStore


async def grant_of(store: Coordination, ask: BlockAsk) -> BlockGrant:
    return (await store.lease_blocks([ask]))[0]


async def test_a_reservation_gets_its_slots_and_not_one_more(store: Coordination) -> None:
    assert await granted(store, reserved("a", 9)) == 4
    assert await granted(store, reserved("b", 1)) == 0


async def test_others_get_what_the_owner_does_not_keep(store: Coordination) -> None:
    await granted(store, reserved("a", 0, kept=1))
    assert await granted(store, block("a", 8)) == 7


async def test_who_holds_more_than_his_share_does_not_cost_the_owner_what_is_kept(
    store: Coordination,
) -> None:
    await granted(store, reserved("a", 0, kept=2))
    assert await granted(store, block("b", 8)) == 6
    await granted(store, block("b", 8, has=6, in_flight=6))
    assert await granted(store, block("c", 8)) == 0


async def test_two_reservations_do_not_touch_each_other(store: Coordination) -> None:
    await granted(store, reserved("a", 4))
    assert await granted(store, reserved("a", 9, reservation="s", slots=3)) == 3
    assert await granted(store, block("b", 8)) == 1


async def test_what_is_needed_comes_before_what_is_liked_besides(store: Coordination) -> None:
    await granted(store, reserved("a", 0, besides=3))
    assert await granted(store, reserved("b", 3)) == 1
    assert await granted(store, reserved("a", 0, besides=3, has=3)) == 1
    assert await granted(store, reserved("a", 0, besides=3, has=1)) == 1
    assert await granted(store, reserved("b", 3, has=1)) == 3


async def test_slots_that_are_lent_are_owed_and_called_back(store: Coordination) -> None:
    await granted(store, reserved("a", 0, kept=1))
    await granted(store, block("b", 8))
    owner = await grant_of(store, reserved("a", 4))
    assert (owner.granted, owner.owed) == (1, 3)
    lender = await grant_of(store, block("b", 8, has=7, in_flight=7))
    assert (lender.granted, lender.recall) == (4, 3)
    lender = await grant_of(store, block("b", 8, has=4, in_flight=6))
    assert lender.recall == 2
    lender = await grant_of(store, block("b", 8, has=4, in_flight=4))
    assert lender.recall == 0
    owner = await grant_of(store, reserved("a", 4, has=1, in_flight=1))
    assert (owner.granted, owner.owed) == (4, 0)


async def test_nothing_is_called_back_for_what_is_only_liked(store: Coordination) -> None:
    await granted(store, block("b", 8))
    await granted(store, reserved("a", 0, besides=4, kept=4))
    lender = await grant_of(store, block("b", 8, has=8, in_flight=8))
    assert (lender.granted, lender.recall) == (4, 0)


async def test_nothing_is_called_back_that_is_given_up_unused(store: Coordination) -> None:
    await granted(store, block("b", 8))
    await granted(store, reserved("a", 4))
    lender = await grant_of(store, block("b", 8, has=8, in_flight=3))
    assert (lender.granted, lender.recall) == (4, 0)


async def test_lenders_share_what_is_called_back(store: Coordination) -> None:
    for holder in "bc":
        await granted(store, block(holder, 4, has=4, in_flight=4))
    await granted(store, reserved("a", 4))
    recalls = [
        (await grant_of(store, block(holder, 4, has=4, in_flight=4))).recall for holder in "bc"
    ]
    assert recalls == [2, 2]


async def test_everything_of_a_holder_goes_back_together(store: Coordination) -> None:
    await granted(store, reserved("a", 4))
    await granted(store, reserved("ab", 0))
    await granted(store, block("a", 4))
    await store.return_blocks("a", ["d"], LATER)
    assert await granted(store, block("b", 8)) == 8


async def test_the_smaller_reservation_counts_while_replicas_disagree(store: Coordination) -> None:
    await granted(store, reserved("a", 1, slots=2))
    assert await granted(store, reserved("b", 4, slots=4)) == 1


async def test_holders_are_counted_by_kind(store: Coordination) -> None:
    await granted(store, block("a", 1))
    await granted(store, block("b", 1))
    assert (await grant_of(store, reserved("a", 1))).holders == 1
    assert (await grant_of(store, block("c", 1))).holders == 3


async def test_the_same_ask_twice_gives_the_same_grant(store: Coordination) -> None:
    await granted(store, block("b", 8))
    ask = reserved("a", 3)
    first = await grant_of(store, ask)
    assert first.owed == 3
    assert await grant_of(store, replace(ask)) == first


async def test_a_store_that_learns_calls_nothing_back(empty_store: MakeStore) -> None:
    store = await empty_store(60)
    await granted(store, block("b", 8, has=8, in_flight=8))
    owner = await grant_of(store, reserved("a", 4))
    assert (owner.granted, owner.owed, owner.learning) == (0, 0, True)
    assert (await grant_of(store, block("b", 8, has=8, in_flight=8))).recall == 0


async def test_owners_who_are_new_to_an_empty_store_get_a_quarter(empty_store: MakeStore) -> None:
    store = await empty_store(60)
    assert await granted(store, reserved("a", 8, slots=8)) == 2
    assert await granted(store, reserved("b", 8, slots=8)) == 0
