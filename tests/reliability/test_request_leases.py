"""Leases for single requests, from the replica's side."""

from __future__ import annotations

import asyncio
import time

import pytest

from prime_inference.adapters.memory.coordination import MemoryCoordination
from prime_inference.ports.coordination import (
    CoordinationUnavailable,
    Limit,
    RequestAsk,
    RequestGrant,
)
from prime_inference.reliability.request_leases import (
    LimitReached,
    RequestLease,
    RequestLeases,
)

TEAM = (Limit("concurrency", 4),)


class Store(MemoryCoordination):
    """A store that can be away, and slow to release."""

    def __init__(self) -> None:
        super().__init__(time.monotonic)
        self.away = False
        self.release_s = 0.0

    async def acquire(self, ask: RequestAsk) -> RequestGrant:
        self._check()
        return await super().acquire(ask)

    async def renew(self, ask: RequestAsk) -> bool:
        self._check()
        return await super().renew(ask)

    async def release(self, ask: RequestAsk) -> bool:
        self._check()
        await asyncio.sleep(self.release_s)
        return await super().release(ask)

    def _check(self) -> None:
        if self.away:
            raise CoordinationUnavailable("away")


@pytest.fixture
def store() -> Store:
    return Store()


async def _take(leases: RequestLeases, member: str) -> RequestLease:
    lease = await leases.acquire("team", TEAM, member)
    assert isinstance(lease, RequestLease), lease
    return lease


async def test_a_limit_holds_across_replicas(store: Store) -> None:
    one = RequestLeases(store, replicas=lambda: 2)
    two = RequestLeases(store, replicas=lambda: 2)
    taken = [await _take(leases, f"{n}") for n, leases in enumerate([one, two, one, two])]
    refused = await one.acquire("team", TEAM, "5")
    assert isinstance(refused, LimitReached)
    assert refused.limit == "concurrency"
    assert refused.retry_after_s > 0
    assert await one.release(taken[0])
    await _take(two, "6")


async def test_without_the_store_each_replica_has_its_part_of_the_limit(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 2)
    store.away = True
    lease = await _take(leases, "1")
    await _take(leases, "2")
    assert isinstance(await leases.acquire("team", TEAM, "3"), LimitReached)
    assert await leases.release(lease)
    await _take(leases, "4")


async def test_leases_from_before_an_outage_count_in_it(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 2)
    await _take(leases, "1")
    await _take(leases, "2")
    store.away = True
    assert isinstance(await leases.acquire("team", TEAM, "3"), LimitReached)


async def test_a_limit_of_zero_stays_zero_without_the_store(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 2)
    store.away = True
    assert isinstance(await leases.acquire("team", (Limit("paused", 0),), "1"), LimitReached)


async def test_a_long_request_keeps_its_place(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 1, ttl_s=0.1)
    running = asyncio.create_task(leases.run())
    lease = await _take(leases, "1")
    await asyncio.sleep(0.3)
    assert not lease.lost
    assert await leases.release(lease)
    running.cancel()


async def test_a_request_whose_lease_has_ended_is_told(store: Store) -> None:
    frozen = RequestLeases(store, replicas=lambda: 1, ttl_s=0.05)
    lease = await _take(frozen, "1")
    await asyncio.sleep(0.1)  # nobody renews
    assert not await frozen.release(lease)


async def test_a_renewal_that_comes_too_late_marks_the_lease_as_lost(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 1, ttl_s=0.1)
    lease = await _take(leases, "1")
    await asyncio.sleep(0.15)
    running = asyncio.create_task(leases.run())
    async with asyncio.timeout(5):
        while not lease.lost:  # noqa: ASYNC110 - it is the renewal that is waited for
            await asyncio.sleep(0.01)
    running.cancel()
    assert not await leases.release(lease)


async def test_a_lease_taken_alone_becomes_a_shared_one_when_the_store_is_back(
    store: Store,
) -> None:
    leases = RequestLeases(store, replicas=lambda: 1, ttl_s=0.1)
    store.away = True
    lease = await _take(leases, "1")
    assert not lease.shared
    running = asyncio.create_task(leases.run())
    await asyncio.sleep(0.1)
    store.away = False
    async with asyncio.timeout(5):
        while not lease.shared:  # noqa: ASYNC110 - it is the renewal that is waited for
            await asyncio.sleep(0.01)
    running.cancel()


async def test_a_cancelled_release_goes_on(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 1)
    taken = [await _take(leases, str(number)) for number in range(4)]
    store.release_s = 0.02
    releasing = asyncio.create_task(leases.release(taken[0]))
    await asyncio.sleep(0)
    releasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    await asyncio.sleep(0.05)
    await _take(leases, "next")


async def test_a_place_can_be_given_back_only_once(store: Store) -> None:
    leases = RequestLeases(store, replicas=lambda: 2)
    store.away = True
    lease = await _take(leases, "1")
    await _take(leases, "2")
    await leases.release(lease)
    await leases.release(lease)
    await _take(leases, "3")
    assert isinstance(await leases.acquire("team", TEAM, "4"), LimitReached)
