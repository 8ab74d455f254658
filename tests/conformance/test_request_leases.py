"""Leases for single requests: what every store must do."""

from __future__ import annotations

import asyncio

import pytest

from prime_inference.ports.coordination import Coordination, Limit
from tests.conformance.asks import request


async def test_no_more_than_the_limit(store: Coordination) -> None:
    assert (await store.acquire(request("r1"))).granted
    assert (await store.acquire(request("r2"))).granted
    refused = await store.acquire(request("r3", ttl_s=5))
    assert not refused.granted
    assert refused.limit == "concurrency"
    assert refused.retry_after_s == pytest.approx(30, abs=5)


async def test_a_released_place_is_free_at_once(store: Coordination) -> None:
    await store.acquire(request("r1"))
    await store.acquire(request("r2"))
    assert await store.release(request("r1"))
    assert (await store.acquire(request("r3"))).granted


async def test_asking_twice_for_one_request_takes_one_place(store: Coordination) -> None:
    for _ in range(2):
        assert (await store.acquire(request("r1"))).granted
    assert (await store.acquire(request("r2"))).granted


async def test_all_limits_or_none(store: Coordination) -> None:
    team, key = Limit("team", 10), Limit("key", 1)
    assert (await store.acquire(request("r1", team, key))).granted
    refused = await store.acquire(request("r2", team, key))
    assert (refused.granted, refused.limit) == (False, "key")
    for number in range(9):  # the refused request has burned nothing of the team's limit
        assert (await store.acquire(request(f"other-{number}", team))).granted
    assert not (await store.acquire(request("one-too-many", team))).granted


async def test_a_lease_ends_by_itself(store: Coordination) -> None:
    for member in ("r1", "r2"):
        await store.acquire(request(member, ttl_s=0.05))
    await asyncio.sleep(0.1)
    assert (await store.acquire(request("r3"))).granted


async def test_a_renewed_lease_goes_on(store: Coordination) -> None:
    one = Limit("concurrency", 1)
    await store.acquire(request("r1", one, ttl_s=0.1))
    assert await store.renew(request("r1", one, ttl_s=30))
    await asyncio.sleep(0.15)
    assert not (await store.acquire(request("r2", one))).granted


async def test_a_lease_that_has_ended_is_not_revived(store: Coordination) -> None:
    one = Limit("concurrency", 1)
    await store.acquire(request("r1", one, ttl_s=0.05))
    await asyncio.sleep(0.1)
    assert not await store.renew(request("r1", one))
    assert not await store.release(request("r1", one))
    assert (await store.acquire(request("r2", one))).granted


async def test_a_short_new_lease_does_not_end_a_long_old_one(store: Coordination) -> None:
    await store.acquire(request("long", ttl_s=30))
    await store.acquire(request("short", ttl_s=0.05))
    await asyncio.sleep(0.1)
    assert await store.renew(request("long"))


async def test_a_lost_part_of_a_lease_is_a_lost_lease(store: Coordination) -> None:
    a, b = Limit("a", 1), Limit("b", 1)
    await store.acquire(request("r1", a, ttl_s=30))
    assert not await store.renew(request("r1", a, b))
    assert not await store.release(request("r1", a, b))


async def test_scopes_do_not_see_each_other(store: Coordination) -> None:
    one = Limit("concurrency", 1)
    assert (await store.acquire(request("r1", one, scope="t1"))).granted
    assert (await store.acquire(request("r1", one, scope="t2"))).granted


async def test_a_limit_of_zero_grants_nothing(store: Coordination) -> None:
    refused = await store.acquire(request("r1", Limit("paused", 0)))
    assert (refused.granted, refused.retry_after_s) == (False, 0)
