"""The conformance suite of limits: memory and every Redis there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import count

import pytest

from prime_inference.adapters.memory.limits import MemoryLimits
from prime_inference.adapters.redis.limits import RedisLimits
from prime_inference.billing.holds import LEARN_S, Holds
from prime_inference.domain.errors import BudgetExceeded
from prime_inference.domain.limits import DAY_S, Limit, LimitKind
from prime_inference.ports.limits import (
    Demand,
    HoldAsk,
    HoldGrant,
    LimitStore,
    LimitsUnavailable,
)
from tests.redis_server import RedisServer

members = count(1)
DAY = 20_000


@pytest.fixture
async def limits(redis_or_memory: RedisServer | None) -> AsyncIterator[LimitStore]:
    store: LimitStore
    if redis_or_memory is None:
        store = MemoryLimits(time.monotonic)
    else:
        redis_or_memory.command("FLUSHALL")
        store = RedisLimits(redis_or_memory.url, call_s=5, connect_s=5)
    yield store
    await store.close()


def budget(amount: int, most: int = 100, **fields: int) -> Demand:
    return Demand("budget", LimitKind.BUDGET_DAILY, most, amount, **{"window": DAY, **fields})


def places(most: int, amount: int = 1) -> Demand:
    return Demand("places", LimitKind.CONCURRENCY, most, amount)


def rate(amount: int, most: int) -> Demand:
    return Demand("rate", LimitKind.TOKENS_PER_MINUTE, most, amount)


def ask(*demands: Demand, ttl_s: float = 30.0) -> HoldAsk:
    return HoldAsk(f"request-{next(members)}", demands, ttl_s)


async def test_a_budget_is_held_then_spent(limits: LimitStore):
    first = ask(budget(60))
    grant = await limits.reserve(first)
    assert (grant.granted, grant.states[0].left, grant.states[0].spent) == (True, 40, 0)
    assert (await limits.reserve(ask(budget(41)))).refused == 0
    await limits.settle([(first, [25])])
    grant = await limits.reserve(ask(budget(75)))
    assert (grant.granted, grant.states[0].left, grant.states[0].spent) == (True, 0, 25)


async def test_two_hundred_at_once_never_hold_more_than_the_budget(limits: LimitStore):
    grants = await asyncio.gather(*(limits.reserve(ask(budget(10))) for _ in range(200)))
    assert sum(grant.granted for grant in grants) == 10


async def test_a_hold_is_all_or_nothing(limits: LimitStore):
    refused = await limits.reserve(ask(rate(50, 100), places(5), budget(101)))
    assert refused.refused == 2
    assert [state.left for state in refused.states] == [100, 5, 100]
    granted = await limits.reserve(ask(rate(100, 100), places(5), budget(100)))
    assert granted.granted


async def test_reserving_and_settling_twice_counts_once(limits: LimitStore):
    wanted = ask(budget(60), places(2), rate(30, 100))
    for _ in range(3):
        assert (await limits.reserve(wanted)).granted
    for _ in range(3):
        await limits.settle([(wanted, [10, 1, 30])])
    assert (await limits.reserve(wanted)).granted  # a repeat that comes late
    grant = await limits.reserve(ask(budget(0), places(2, 0), rate(0, 100)))
    assert [state.left for state in grant.states[:2]] == [90, 2]
    assert grant.states[2].left in (70, 71, 72, 73)  # it fills while we look


async def test_a_hold_ends_by_itself_and_a_late_settlement_still_counts(limits: LimitStore):
    late = ask(budget(100), places(1), ttl_s=0.1)
    assert (await limits.reserve(late)).granted
    assert not (await limits.reserve(ask(budget(1)))).granted
    await asyncio.sleep(0.15)
    other = ask(budget(60), places(1))
    assert (await limits.reserve(other)).granted
    await limits.settle([(late, [30, 1])])
    grant = await limits.reserve(ask(budget(11)))
    assert (grant.refused, grant.states[0].spent, grant.states[0].left) == (0, 30, 10)


async def test_a_renewed_hold_stays_and_one_that_ended_comes_back(limits: LimitStore):
    kept, ended = ask(places(2), ttl_s=0.4), ask(places(2), ttl_s=0.1)
    await limits.reserve(kept)
    await limits.reserve(ended)
    await asyncio.sleep(0.2)
    longer = [HoldAsk(each.member, each.demands, 30.0) for each in (kept, ended)]
    await limits.renew(longer)
    await asyncio.sleep(0.4)
    grant = await limits.reserve(ask(places(2, 0)))
    assert grant.states[0].left == 0
    await limits.settle([(kept, [1])])
    await limits.renew(longer)  # one that overtakes: it is over
    assert (await limits.reserve(ask(places(2, 0)))).states[0].left == 1


async def test_a_rate_fills_again_and_says_how_long_it_takes(limits: LimitStore):
    assert (await limits.reserve(ask(rate(600, 600)))).granted
    refused = await limits.reserve(ask(rate(300, 600)))
    assert refused.refused == 0
    assert 25 < refused.states[0].wait_s <= 30
    await asyncio.sleep(0.25)  # ten a second
    assert (await limits.reserve(ask(rate(2, 600)))).granted


async def test_what_was_reserved_of_a_rate_and_not_used_is_given_back(limits: LimitStore):
    wanted = ask(rate(600, 600))
    await limits.reserve(wanted)
    await limits.settle([(wanted, [100])])
    assert (await limits.reserve(ask(rate(500, 600)))).granted


async def test_a_rate_that_is_drawn_afterwards_may_owe_and_waits_until_it_has_paid(
    limits: LimitStore,
):
    first, second = ask(rate(0, 600)), ask(rate(0, 600))
    for each in (first, second):
        assert (await limits.reserve(each)).granted
    await limits.settle([(first, [400]), (second, [300])])
    refused = await limits.reserve(ask(rate(0, 600)))
    assert refused.refused == 0
    assert 5 < refused.states[0].wait_s <= 10


@pytest.mark.parametrize(("drawn", "owes"), [(60, False), (600, True)])
async def test_a_bucket_that_is_empty_and_owes_nothing_lets_through(
    limits: LimitStore, drawn: int, owes: bool
):
    first = ask(rate(0, 60))
    await limits.reserve(first)
    (states,) = await limits.settle([(first, [drawn])])
    assert states[0].left == 0
    assert (await limits.reserve(ask(rate(0, 60)))).granted is not owes


async def test_more_than_a_whole_minute_takes_a_whole_minute(limits: LimitStore):
    assert (await limits.reserve(ask(rate(5_000, 600)))).granted
    assert not (await limits.reserve(ask(rate(300, 600)))).granted


async def test_a_limit_of_nothing_lets_nothing_through(limits: LimitStore):
    for demand in (rate(1, 0), places(0), budget(1, 0)):
        assert (await limits.reserve(ask(demand))).refused == 0


async def test_a_new_window_begins_with_nothing_spent(limits: LimitStore):
    old = ask(budget(80))
    await limits.reserve(old)
    await limits.settle([(old, [80])])
    grant = await limits.reserve(ask(budget(100, window=DAY + 1)))
    assert (grant.granted, grant.states[0].spent) == (True, 0)


async def test_what_is_settled_after_its_window_does_not_burden_the_next(limits: LimitStore):
    old = ask(budget(80))
    await limits.reserve(old)
    await limits.reserve(ask(budget(1, window=DAY + 1)))
    await limits.settle([(old, [80])])
    grant = await limits.reserve(ask(budget(99, window=DAY + 1)))
    assert grant.granted


async def test_windows_are_counted_apart_whatever_order_they_come_in(limits: LimitStore):
    for window, cost in ((DAY, 70), (DAY + 1, 20), (DAY, 30), (DAY - 1, 5)):
        wanted = ask(budget(cost, window=window))
        assert (await limits.reserve(wanted)).granted
        await limits.settle([(wanted, [cost])])
    for window, left in ((DAY, 0), (DAY + 1, 80), (DAY, 0), (DAY - 1, 95), (DAY, 0)):
        grant = await limits.reserve(ask(budget(left + 1, window=window)))
        assert (grant.refused, grant.states[0].left) == (0, left)


async def test_what_ends_after_its_window_is_counted_in_it(limits: LimitStore):
    late = ask(budget(80))
    await limits.reserve(late)
    assert (await limits.reserve(ask(budget(100, window=DAY + 1)))).granted  # holds are apart, too
    await limits.settle([(late, [80])])
    grant = await limits.reserve(ask(budget(21)))
    assert (grant.refused, grant.states[0].spent) == (0, 80)


def replica_at(limits: LimitStore, clock: list[float], replicas: int = 1) -> Holds:
    """One whose ledger has nothing yet."""

    async def nothing_spent(limit: Limit, window: int) -> int:
        return 0

    return Holds(
        limits,
        nothing_spent,
        replicas=lambda: replicas,
        wall_clock=lambda: clock[0],
        clock=lambda: clock[0],
    )


async def served(replica: Holds, kind: LimitKind, cost: int = 1, most: int = 10) -> bool:
    """Whether a request of that cost is admitted; it is settled at once."""
    limit = Limit("budget", kind, most)
    try:
        hold = await replica.take(f"request-{next(members)}", [limit], tokens=1, cost=cost)
    except BudgetExceeded:
        return False
    assert hold is not None
    replica.settle(hold, tokens=1, cost=cost)
    await replica._settle()
    return True


@pytest.mark.parametrize(
    "kind", [LimitKind.BUDGET_DAILY, LimitKind.BUDGET_WEEKLY, LimitKind.BUDGET_MONTHLY]
)
async def test_a_replica_whose_clock_is_wrong_for_a_moment_opens_no_budget(
    limits: LimitStore, kind: LimitKind
):
    right, wrong = [DAY * DAY_S + 43_200.0], [DAY * DAY_S + 43_200.0]
    replicas = [replica_at(limits, right), replica_at(limits, wrong)]
    for _ in range(10):
        assert await served(replicas[0], kind)
    for days in (40, -40, 80):
        wrong[0] += days * DAY_S
        assert await served(replicas[1], kind)  # of that window's budget
        wrong[0] = right[0]
        for replica in replicas:
            assert not await served(replica, kind)
    wrong[0] += 80 * DAY_S
    assert not await served(replicas[1], kind, 10)  # it has spent of it


async def test_over_midnight_skewed_replicas_spend_what_each_day_has_and_no_more(
    limits: LimitStore,
):
    """Replicas a second apart, asked in turn: each day has its own budget, and all of it."""
    clocks = [[DAY * DAY_S - 3.0 + skew] for skew in (-1.0, 0.0, 1.0)]
    replicas = [replica_at(limits, clock) for clock in clocks]
    spent = {DAY - 1: 0, DAY: 0}
    for _ in range(12):
        for replica, clock in zip(replicas, clocks, strict=True):
            day = int(clock[0] // DAY_S)
            spent[day] += 3 * await served(replica, LimitKind.BUDGET_DAILY, 3)
            clock[0] += 0.5
    assert spent == {DAY - 1: 9, DAY: 9}


async def test_an_empty_store_learns_what_was_spent_from_whoever_has_seen_it(limits: LimitStore):
    grant = await limits.reserve(ask(budget(21, seen=80)))
    assert (grant.refused, grant.states[0].spent) == (0, 80)
    assert (await limits.reserve(ask(budget(20, seen=10)))).granted  # the highest stands


async def test_budgets_of_millions_are_exact(limits: LimitStore):
    most = 2**52
    first = ask(budget(most - 1, most))
    assert (await limits.reserve(first)).granted
    assert (await limits.reserve(ask(budget(2, most)))).refused == 0
    assert (await limits.reserve(ask(budget(1, most)))).granted
    await limits.settle([(first, [most - 1])])
    grant: HoldGrant = await limits.reserve(ask(budget(1, most)))
    assert (grant.refused, grant.states[0].spent) == (0, most - 1)


async def test_a_store_that_forgot_everything_says_so_and_takes_holds_back(
    redis_or_memory: RedisServer | None,
):
    if redis_or_memory is None:
        pytest.skip("memory forgets with its process")
    redis_or_memory.command("FLUSHALL")
    store = RedisLimits(redis_or_memory.url, call_s=5, connect_s=5)
    held, done = ask(budget(40), places(2)), ask(budget(20), places(2))
    await store.reserve(held)
    await store.reserve(done)
    ((spent, _),) = await store.settle([(done, [20, 1])])
    assert (spent.spent, spent.restored) == (20, False)
    redis_or_memory.command("FLUSHALL")
    behind = await store.reserve(ask(budget(0, seen=20), places(2, 0)))
    assert [state.restored for state in behind.states] == [True, True]
    await store.renew([held])
    again = await store.reserve(ask(budget(0, seen=20), places(2, 0)))
    assert [(state.left, state.restored) for state in again.states] == [(40, False), (1, False)]
    await store.close()


@pytest.mark.parametrize("kind", [LimitKind.BUDGET_TOTAL, LimitKind.BUDGET_DAILY])
async def test_a_store_that_is_emptied_opens_no_budget_beyond_the_grace(
    redis_or_memory: RedisServer | None, kind: LimitKind
):
    """Nothing of it is in the ledger yet, and one replica has spent all that the other has not."""
    if redis_or_memory is None:
        pytest.skip("memory forgets with its process")
    redis_or_memory.command("FLUSHALL")
    stores = [RedisLimits(redis_or_memory.url, call_s=5, connect_s=5) for _ in range(2)]
    clock = [DAY * DAY_S]
    one, other = replicas = [replica_at(store, clock, 2) for store in stores]
    most, spent = 1000, 0
    for replica in replicas:
        await replica.look()
    for _ in range(7):
        spent += 100 * await served(other, kind, 100, most)
    running = await other.take("runs", [Limit("budget", kind, most)], tokens=1, cost=200)
    assert running is not None
    redis_or_memory.command("FLUSHALL")
    for _ in range(30):
        for cost in (100, 1):
            spent += cost * await served(one, kind, cost, most)
    assert spent == 700 + 5  # its half of the grace
    assert one.degraded
    await other.look()
    spent += await served(other, kind, 1, most)
    clock[0] += LEARN_S
    while await served(one, kind, 1, most):
        spent += 1
    assert not one.degraded
    assert spent == 800  # the rest runs
    other.settle(running, tokens=1, cost=50)
    await other.drain()
    assert [await served(replica, kind, 151, most) for replica in replicas] == [False, False]
    assert await served(one, kind, 150, most)
    for store in stores:
        await store.close()


async def test_what_could_not_be_put_back_is_put_back_later(redis_or_memory: RedisServer | None):
    if redis_or_memory is None:
        pytest.skip("memory forgets with its process")
    redis_or_memory.command("FLUSHALL")
    store = RedisLimits(redis_or_memory.url, call_s=5, connect_s=5)
    clock = [DAY * DAY_S]
    own = replica_at(store, clock)
    await own.look()
    assert await served(own, LimitKind.BUDGET_TOTAL, 7)
    redis_or_memory.command("FLUSHALL")
    renew, store.renew = store.renew, away  # type: ignore[method-assign]
    await own.look()
    store.renew = renew  # type: ignore[method-assign]
    await own.look()
    stranger = Demand("budget", LimitKind.BUDGET_TOTAL, 10, 4)
    assert (await store.reserve(ask(stranger))).states[0].spent == 7
    await store.close()


async def away(asks: object) -> None:
    raise LimitsUnavailable("away")
