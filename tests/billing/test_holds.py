"""Holds of a replica: refusals that say enough, and what happens while the store is away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from prime_inference.adapters.memory.limits import MemoryLimits
from prime_inference.billing.holds import GRACE, HOLDS_AT_ONCE, Hold, Holds
from prime_inference.billing.limit_table import LimitTable
from prime_inference.domain.errors import BudgetExceeded, RateLimited, ReservationExhausted
from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.reservations import Period, Reservation
from prime_inference.ports.ledger import LedgerUnavailable
from prime_inference.ports.limits import (
    HoldAsk,
    HoldGrant,
    LimitState,
    LimitsUnavailable,
    Settlement,
)

MOST = 1_000_000
TOTAL = Limit("total", LimitKind.BUDGET_TOTAL, MOST, tenant="t")
NOW = 1_800_000_000.0


class Store(MemoryLimits):
    """A store that can be away."""

    def __init__(self) -> None:
        super().__init__(lambda: 0.0)
        self.away = False

    def forget(self) -> None:
        self._table = LimitTable()

    async def reserve(self, ask: HoldAsk) -> HoldGrant:
        if self.away:
            raise LimitsUnavailable("away")
        return await super().reserve(ask)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Sequence[LimitState]]:
        if self.away:
            raise LimitsUnavailable("away")
        return await super().settle(settlements)


def holds(store: Store, spent: int = 0, replicas: int = 1) -> Holds:
    async def ledger_spent(limit: Limit, window: int) -> int:
        return spent

    return Holds(
        store,
        ledger_spent,
        replicas=lambda: replicas,
        wall_clock=lambda: NOW,
        clock=lambda: 0.0,
    )


async def spend(own: Holds, name: str, cost: int) -> bool:
    """Take, use all of it, settle; False if refused."""
    try:
        hold = await own.take(name, [TOTAL], tokens=1, cost=cost)
    except BudgetExceeded:
        return False
    assert hold is not None
    own.settle(hold, tokens=1, cost=cost)
    await own.drain()
    return True


async def test_a_request_without_limits_holds_nothing():
    assert await holds(Store()).take("r", [], tokens=1, cost=1) is None


async def test_a_budget_that_is_used_up_says_what_is_left_and_when_it_resets():
    own = holds(Store())
    daily = Limit("d", LimitKind.BUDGET_DAILY, 2_000_000_000, key_id="k")
    await own.take("r1", [daily], tokens=1, cost=1_500_000_000)
    with pytest.raises(BudgetExceeded) as caught:
        await own.take("r2", [daily], tokens=1, cost=600_000_000)
    error = caught.value
    assert error.message == (
        "This request could cost $0.60; of the daily budget of $2.00 on this key $0.50 is left."
        " Lower max_tokens, or ask for a higher budget."
    )
    assert error.details["limit"] == {
        "id": "d",
        "kind": "budget_daily",
        "limit": "2.00",
        "remaining": "0.50",
        "resets_at": 1_800_057_600,
    }
    assert error.headers["x-ratelimit-remaining"] == "0.50"
    assert error.headers["x-ratelimit-reset"] == "57600.000"
    assert error.retry_after == 57600


async def test_a_rate_that_is_reached_says_when_to_come_again():
    own = holds(Store())
    rate = Limit("r", LimitKind.TOKENS_PER_MINUTE, 600, tenant="t", model="m")
    await own.take("r1", [rate], tokens=600, cost=0)
    with pytest.raises(RateLimited) as caught:
        await own.take("r2", [rate], tokens=60, cost=0)
    assert "600 tokens per minute on this team and m" in caught.value.message
    assert caught.value.retry_after == pytest.approx(6)
    assert caught.value.headers["x-ratelimit-name"] == "tokens_per_minute:r"


async def test_the_output_of_a_reservation_is_drawn_when_it_is_known_by_all_replicas():
    store = Store()
    one, other = holds(store), holds(store)
    reserved = Reservation("res_1", "t", "m", 8, 0.0, 0, Period.HOUR, 0.0, tokens_per_second=1)
    limit = reserved.output_limit
    assert limit is not None
    for own, pool in ((one, "serverless"), (one, limit.id), (other, limit.id)):
        hold = await own.take(f"{pool} {id(own)}", [limit], tokens=10**6, cost=0)
        assert hold is not None
        own.settle(hold, tokens=10**6, cost=0, output=40, pool=pool)
        await own.drain()
    assert other.output_left == {limit.id: 0}
    for own in (one, other):
        with pytest.raises(ReservationExhausted) as caught:
            await own.take("r", [TOTAL, limit], tokens=1, cost=1)
        assert caught.value.reservations == ("res_1",)
        assert caught.value.over == caught.value.headers["x-prime-over"] == "tokens_per_second"
        assert caught.value.retry_after == pytest.approx(20)  # 80 of 60 were drawn
    assert await spend(one, "r2", MOST)  # nothing is held of the limits beside it


async def test_what_the_ledger_has_counts_for_a_store_that_is_empty():
    own = holds(Store(), spent=MOST - 5)
    assert not await spend(own, "r1", 6)
    assert await spend(own, "r2", 5)
    assert not await spend(own, "r3", 1)


async def test_without_the_store_all_replicas_together_spend_no_more_than_the_grace():
    store = Store()
    replicas = [holds(store, replicas=3) for _ in range(3)]
    store.away = True
    passed = 0
    for number in range(400):
        for place, own in enumerate(replicas):
            passed += await spend(own, f"{number}-{place}", 100)
    assert 0 < passed * 100 <= MOST // GRACE
    assert all(own.degraded for own in replicas)


async def test_without_the_store_a_budget_known_to_be_used_up_has_no_grace():
    store = Store()
    own = holds(store)
    assert await spend(own, "r1", MOST)
    assert not await spend(own, "r2", 1)  # so the replica has seen it
    store.away = True
    assert not await spend(own, "r3", 1)


async def test_what_was_spent_alone_reaches_the_store_when_it_is_back():
    store = Store()
    own = holds(store)
    store.away = True
    assert await spend(own, "r1", 700)
    store.away = False
    running = asyncio.create_task(own.run())
    hold: Hold | None = None
    async with asyncio.timeout(10):
        while hold is None:
            grant = await store.reserve(HoldAsk("probe", (await own._demand(TOTAL, 1, 0, NOW),), 1))
            if grant.states[0].spent == 700:
                break
            await asyncio.sleep(0.05)
    running.cancel()
    assert not await spend(own, "r2", MOST - 699)
    assert await spend(own, "r3", MOST - 700)


async def test_settling_twice_settles_once():
    own = holds(Store())
    hold = await own.take("r1", [TOTAL], tokens=1, cost=10)
    assert hold is not None
    own.settle(hold, tokens=1, cost=10)
    own.settle(hold, tokens=1, cost=10)
    await own.drain()
    assert await spend(own, "r2", MOST - 10)


async def test_nobody_is_refused_for_what_has_ended_but_not_been_settled():
    own = holds(Store())
    for number in range(20):
        hold = await own.take(f"r{number}", [TOTAL], tokens=1, cost=MOST - 100)
        assert hold is not None
        own.settle(hold, tokens=1, cost=5)


async def test_while_the_ledger_is_away_the_store_alone_decides():
    store = Store()
    assert await spend(holds(store), "r1", MOST - 5)

    async def away(limit: Limit, window: int) -> int:
        raise LedgerUnavailable("away")

    other = Holds(store, away, wall_clock=lambda: NOW, clock=lambda: 0.0)
    assert not await spend(other, "r2", 6)
    assert await spend(other, "r3", 5)


async def test_a_store_that_comes_back_empty_knows_again_what_was_spent_and_what_is_held():
    """By what the replica saw settled, what the ledger has, and the requests that still run."""
    written = 0

    async def ledger_spent(limit: Limit, window: int) -> int:
        return written

    store = Store()
    own = Holds(store, ledger_spent, wall_clock=lambda: NOW, clock=lambda: 0.0)
    assert await spend(own, "r1", MOST // 2)
    store.forget()
    assert not await spend(own, "r2", MOST // 2 + 1)  # it saw its own settlement
    running = await own.take("r3", [TOTAL], tokens=1, cost=MOST // 4)
    assert running is not None
    store.forget()
    assert not await spend(own, "r4", MOST // 4 + 1)  # and its own hold
    written = MOST  # by other replicas
    store.forget()
    assert not await spend(own, "r5", 1)


async def test_the_ledger_is_read_once_while_the_store_remembers():
    reads = []

    async def ledger_spent(limit: Limit, window: int) -> int:
        reads.append(limit)
        return 0

    own = Holds(Store(), ledger_spent, wall_clock=lambda: NOW, clock=lambda: 0.0)
    for number in range(5):
        assert await spend(own, f"r{number}", 1)
    assert len(reads) <= 2  # once more, as the store knew nothing of it


async def test_what_an_outage_left_is_settled_in_parts_that_fit_into_a_calls_time():
    """Ten thousand settlements in one call of 0.1 s were never taken, and a budget opened again."""

    class Short(Store):
        async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Sequence[LimitState]]:
            if len(settlements) > HOLDS_AT_ONCE:
                raise LimitsUnavailable("too much for a call")
            return await super().settle(settlements)

    store = Short()
    own = holds(store, replicas=1)
    taken = [
        await own.take(f"r{number}", [TOTAL], tokens=1, cost=1)
        for number in range(2 * HOLDS_AT_ONCE + 7)
    ]
    for hold in taken:
        assert hold is not None
        own.settle(hold, tokens=1, cost=1)
    await own.drain()
    assert not await spend(own, "last", MOST - len(taken) + 1)
    assert await spend(own, "fits", MOST - len(taken))


class SlowStore(Store):
    """A store whose answers and settlements come when they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.called = asyncio.Event()
        self.slow = {"reserve": False, "settle": False}

    async def _pass(self, call: str) -> None:
        if self.slow[call]:
            self.called.set()
            await asyncio.Event().wait()

    async def reserve(self, ask: HoldAsk) -> HoldGrant:
        grant = await super().reserve(ask)
        await self._pass("reserve")
        return grant

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Sequence[LimitState]]:
        await self._pass("settle")
        return await super().settle(settlements)


async def leave_in(store: SlowStore, call: str, work: Coroutine[Any, Any, object]) -> None:
    """Cancel a request while the store has not answered that call."""
    store.slow[call] = True
    request = asyncio.create_task(work)
    await store.called.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    store.slow[call] = False


async def test_a_client_that_leaves_while_its_hold_is_taken_leaves_none_behind():
    store = SlowStore()
    own = holds(store)
    await leave_in(store, "reserve", own.take("r1", [TOTAL], tokens=1, cost=MOST))
    await own.drain()
    assert await spend(own, "r2", MOST)


async def test_a_client_that_leaves_while_it_is_refused_makes_no_tokens():
    store = SlowStore()
    own = holds(store)
    rate = Limit("r", LimitKind.TOKENS_PER_MINUTE, 600, tenant="t", model="m")
    await own.take("r1", [rate], tokens=600, cost=0)
    await leave_in(store, "reserve", own.take("r2", [rate], tokens=600, cost=0))
    await own.drain()
    with pytest.raises(RateLimited):
        await own.take("r3", [rate], tokens=1, cost=0)


async def test_a_client_that_leaves_while_others_are_settled_loses_none_of_it():
    store = SlowStore()
    own = holds(store)
    first = await own.take("r1", [TOTAL], tokens=1, cost=MOST)
    assert first is not None
    own.settle(first, tokens=1, cost=MOST - 10)
    await leave_in(store, "settle", own.take("r2", [TOTAL], tokens=1, cost=20))
    await own.drain()
    assert await spend(own, "r3", 10)
    assert not await spend(own, "r4", 1)
