"""What can go wrong with Redis, done to a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

import pytest
from redis.crc import key_slot
from redis.exceptions import BusyLoadingError

from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.adapters.redis.limits import RedisLimits
from prime_inference.adapters.redis.refusals import refusal
from prime_inference.ports.coordination import (
    BreakerState,
    CoordinationRefused,
    CoordinationUnavailable,
    Limit,
    Verdict,
)
from prime_inference.ports.limits import LimitsUnavailable
from tests.conformance.asks import block, granted, probe, request, result, trip
from tests.redis_server import RedisServer


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisCoordination]:
    # production gives a call 50 ms; here the machine may be busy with other tests
    store = RedisCoordination(redis_server.url, learning_s=0, call_s=2, connect_s=2, ping_s=0.5)
    yield store
    await store.close()


async def _works_again(store: RedisCoordination) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await store.breakers(0)
            except CoordinationUnavailable:
                await asyncio.sleep(0.1)
            else:
                return


async def test_scripts_are_sent_again_after_a_restart(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    assert await granted(store, block("a", 3)) == 3
    redis_server.restart()
    await _works_again(store)
    assert await granted(store, block("a", 3)) == 3


async def test_scripts_that_the_server_has_flushed_are_sent_again(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await granted(store, block("a", 3))
    redis_server.command("SCRIPT", "FLUSH")
    assert await granted(store, block("b", 3)) == 3


@pytest.mark.parametrize("forbidden", ["-script", "-evalsha"])
async def test_a_server_that_forbids_script_or_evalsha_gets_eval(
    redis_server: RedisServer, store: RedisCoordination, forbidden: str
) -> None:
    redis_server.command("ACL", "SETUSER", "default", forbidden)
    asks = [block("a", 3, pool=pool) for pool in "xyz"]
    assert [grant.granted for grant in await store.lease_blocks(asks)] == [3, 3, 3]
    assert (await store.trip(trip())).state is BreakerState.OPEN


async def test_a_frozen_server_is_given_up_on_soon_and_then_not_asked(
    redis_server: RedisServer,
) -> None:
    store = RedisCoordination(redis_server.url, learning_s=0)
    redis_server.freeze()
    try:
        for _ in range(3):
            async with asyncio.timeout(1):  # 50 ms, on a busy machine
                with pytest.raises(CoordinationUnavailable):
                    await store.lease_blocks([block("a", 3)])
        with pytest.raises(CoordinationUnavailable, match="did not answer lately"):
            await store.lease_blocks([block("a", 3)])
    finally:
        redis_server.thaw()
    await _works_again(store)
    await store.close()


async def test_an_ask_that_a_frozen_server_carries_out_late_changes_nothing(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await granted(store, block("a", 8))
    redis_server.freeze()
    late = block("a", 2, has=2)
    newer = block("a", 8, has=8)
    with pytest.raises(CoordinationUnavailable):
        await store.lease_blocks([late])  # it lies in the server's socket
    redis_server.thaw()
    await _works_again(store)
    assert await granted(store, newer) == 8
    assert await granted(store, late) == 8
    assert await granted(store, block("b", 8)) == 0


async def test_a_server_that_is_gone_is_unavailable_and_back_when_it_is_back(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    redis_server.stop()
    for _ in range(5):
        with pytest.raises(CoordinationUnavailable):
            await store.trip(trip())
    redis_server.start()
    await _works_again(store)
    assert (await store.trip(trip())).state is BreakerState.OPEN


async def test_a_subscription_ends_with_its_server(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    watching = asyncio.create_task(store.watch(lambda record: None))
    await asyncio.sleep(0.2)
    redis_server.stop()
    with pytest.raises(CoordinationUnavailable):
        async with asyncio.timeout(5):
            await watching


async def test_a_subscription_to_a_frozen_server_ends(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    watching = asyncio.create_task(store.watch(lambda record: None))
    await asyncio.sleep(0.2)
    redis_server.freeze()
    try:
        with pytest.raises(CoordinationUnavailable):
            async with asyncio.timeout(10):
                await watching
    finally:
        redis_server.thaw()


async def test_a_primary_that_was_demoted_is_left_for_the_new_one(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await granted(store, block("a", 3))
    redis_server.command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(CoordinationUnavailable):
        await store.lease_blocks([block("a", 3)])
    redis_server.command("REPLICAOF", "NO", "ONE")
    await _works_again(store)
    assert await granted(store, block("a", 3)) == 3


async def test_a_password_that_is_wanted_or_wrong_is_told_as_such(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await granted(store, block("a", 3))
    wrong = RedisCoordination(f"unix://:guess@{redis_server.socket}", call_s=2, connect_s=2)
    redis_server.command("CONFIG", "SET", "requirepass", "secret")
    with pytest.raises(CoordinationRefused, match=r"WRONGPASS.*password in the Redis URL is wrong"):
        await wrong.breakers(0)
    with pytest.raises(CoordinationRefused, match=r"no subscription: .*WRONGPASS"):
        await wrong.watch(lambda push: None)
    for _ in range(5):  # it is not asked any more, and the reason is still known
        with pytest.raises(CoordinationRefused, match="WRONGPASS"):
            await wrong.breakers(0)
    await wrong.close()
    without = RedisCoordination(redis_server.url, call_s=2, connect_s=2)
    with pytest.raises(CoordinationRefused, match=r"NOAUTH.*redis://:PASSWORD@HOST"):
        await without.breakers(0)
    await without.close()


@pytest.mark.parametrize(
    ("code", "commands"),
    [
        ("READONLY", [("REPLICAOF", "127.0.0.1", "1")]),
        ("NOPERM", [("ACL", "SETUSER", "default", "-@scripting")]),
        ("OOM", [("CONFIG", "SET", "maxmemory", "1")]),
        ("WRONGTYPE", [("SET", "prime:{blocks}:d", "of somebody else")]),
        ("MASTERDOWN", [
            ("CONFIG", "SET", "replica-serve-stale-data", "no"), ("REPLICAOF", "127.0.0.1", "1"),
        ]),
    ],
)  # fmt: skip
async def test_what_a_server_refuses_is_told_by_its_name(
    redis_server: RedisServer, code: str, commands: list[tuple[str, ...]]
) -> None:
    store = RedisCoordination(redis_server.url, learning_s=0, call_s=2, connect_s=2)
    for command in commands:
        redis_server.command(*command)
    with pytest.raises(CoordinationRefused, match=f"Redis says .*{code}.*: "):
        await store.lease_blocks([block("a", 3)])
    await store.close()


def test_a_server_that_is_still_loading_says_so() -> None:
    error = BusyLoadingError("Redis is loading the dataset in memory", status_code="LOADING")
    assert (refusal(error) or "").startswith("Redis says LOADING (Redis is loading the dataset")
    assert refusal(ConnectionError("Connection refused")) is None


async def test_keys_outlive_the_longest_lease_whatever_is_written_last(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    week_s, day_ms = 7 * 86400, 86400 * 1000
    await granted(store, block("long", 1, ttl_s=50))  # beyond 60 of another's it is not believed
    await granted(store, block("short", 1, ttl_s=1))
    await store.acquire(request("long", ttl_s=week_s))
    await store.acquire(request("short", ttl_s=1))
    await store.release(request("short"))
    assert int(redis_server.command("PTTL", "prime:{blocks}:d")) > day_ms + 20_000
    assert int(redis_server.command("PTTL", "prime:requests:{team}:concurrency")) > 7 * day_ms


async def test_keys_of_a_pool_that_is_idle_for_hours_stay(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await granted(store, block("a", 1, ttl_s=1))
    await store.trip(trip(open_s=1))
    for key in ("prime:{blocks}:d", "prime:breakers"):
        assert int(redis_server.command("PTTL", key)) > 3600 * 1000


async def test_all_keys_of_one_decision_have_one_hash_tag(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await store.lease_blocks([block("a", 1, pool=pool) for pool in ("x", "y}{", "{z}")])
    assert len({key_slot(key.encode()) for key in redis_server.every_key()}) == 1
    redis_server.command("FLUSHALL")
    await store.acquire(request("r", Limit("a", 1), Limit("b", 1), scope="t}{"))
    keys = redis_server.every_key()
    assert len(keys) == 4
    assert len({key_slot(key.encode()) for key in keys}) == 1


@pytest.mark.parametrize(
    "value", ["", "garbage", "{}", "[1]", '{"state":"open","tickets":{}}', "7"]
)
async def test_a_poisoned_record_is_as_if_it_were_not_there(
    redis_server: RedisServer, store: RedisCoordination, value: str
) -> None:
    redis_server.command("HSET", "prime:breakers", "d:d", value)
    snapshot = (await store.breakers(-1)).news
    assert snapshot is not None
    assert snapshot.records == ()
    assert not (await store.probe(probe("a"))).granted
    assert (await store.trip(trip())).state is BreakerState.OPEN
    redis_server.command("HSET", "prime:{blocks}:d", "h:someone", value)
    assert await granted(store, block("a", 8)) == 8


async def test_a_key_of_another_type_is_unavailable_not_an_error_of_ours(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    redis_server.command("SET", "prime:breakers", "poison")
    with pytest.raises(CoordinationUnavailable):
        await store.trip(trip())


async def test_a_message_that_is_not_ours_is_ignored(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    watching = asyncio.create_task(store.watch(heard.put_nowait))
    await asyncio.sleep(0.2)
    for text in ("garbage", "[]", json.dumps(["d", "ajar", "1", "0", "rate", 1])):
        redis_server.command("PUBLISH", "prime:breakers:changed", text)
    await store.trip(trip("real"))
    async with asyncio.timeout(5):
        record = await heard.get()
    assert getattr(record, "deployment", None) == "real"
    watching.cancel()


async def test_leases_do_not_live_longer_when_the_clock_steps_back(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await granted(store, block("a", 8, ttl_s=0.3))
    await store.acquire(request("r1", Limit("l", 1), ttl_s=0.3))
    hour_ahead = str(int((time.time() + 3600) * 1e6))
    _shift(redis_server, "prime:{blocks}:d", "h:a", 3600)
    redis_server.command("HSET", "prime:{blocks}:d", "~latest", hour_ahead)
    redis_server.command("SET", "prime:requests:{team}:l:latest", hour_ahead)
    redis_server.command("ZINCRBY", "prime:requests:{team}:l", str(3600 * 10**6), "r1")
    assert await granted(store, block("b", 8)) == 0
    assert not (await store.acquire(request("r2", Limit("l", 1)))).granted
    await asyncio.sleep(0.4)
    assert await granted(store, block("b", 8)) == 8
    assert (await store.acquire(request("r2", Limit("l", 1)))).granted


async def test_breakers_do_not_stay_open_longer_when_the_clock_steps_back(
    redis_server: RedisServer, store: RedisCoordination
) -> None:
    await store.trip(trip(open_s=1.5))
    record = json.loads(redis_server.command("HGET", "prime:breakers", "d:d"))
    record["open_until"] = str(int(record["open_until"]) + 3600 * 10**6)
    hour_ahead = str(int((time.time() + 3600) * 1e6))
    redis_server.command("HSET", "prime:breakers", "d:d", json.dumps(record))
    redis_server.command("HSET", "prime:breakers", "~latest", hour_ahead)
    assert not (await store.probe(probe("a"))).granted
    for _ in range(200):
        grant = await store.probe(probe("a"))
        if grant.granted:
            break
        await asyncio.sleep(0.05)
    assert grant.granted
    closed = await store.conclude(result("a", grant.record.epoch, Verdict.ANSWERED))
    assert closed.state is BreakerState.CLOSED
    assert closed.epoch > grant.record.epoch


async def test_fleets_with_different_prefixes_share_a_server(redis_server: RedisServer) -> None:
    one = RedisCoordination(redis_server.url, prefix="one", learning_s=0, call_s=5, connect_s=5)
    two = RedisCoordination(redis_server.url, prefix="two", learning_s=0, call_s=5, connect_s=5)
    assert await granted(one, block("a", 8)) == 8
    assert await granted(two, block("b", 8)) == 8
    await one.close()
    await two.close()


def _shift(server: RedisServer, key: str, field: str, seconds: int) -> None:
    record = json.loads(server.command("HGET", key, field))
    record["ends"] = str(int(record["ends"]) + seconds * 10**6)
    server.command("HSET", key, field, json.dumps(record))


async def test_a_subscription_ends_whenever_it_is_cancelled(redis_server: RedisServer) -> None:
    for tenths_of_ms in range(30):
        store = RedisCoordination(redis_server.url)
        watching = asyncio.create_task(store.watch(lambda push: None))
        await asyncio.sleep(tenths_of_ms / 10_000)
        watching.cancel()
        done, _ = await asyncio.wait({watching}, timeout=10)
        assert done
        await store.close()


async def test_calls_end_when_they_are_cancelled_while_the_server_goes_away(
    redis_server: RedisServer,
) -> None:
    """One in five went on for ever, and with it a gateway that was told to stop."""

    async def ask(store: RedisLimits) -> None:
        while True:
            await asyncio.sleep(0.01)
            with contextlib.suppress(LimitsUnavailable):
                await store.life()

    stores = [RedisLimits(redis_server.url) for _ in range(60)]
    asking = [asyncio.create_task(ask(store)) for store in stores]
    await asyncio.sleep(0.2)
    redis_server.stop()
    await asyncio.sleep(0.01)
    for task in asking:
        task.cancel()
    _, going_on = await asyncio.wait(asking, timeout=10)
    redis_server.start()
    for store in stores:
        await store.close()
    assert going_on == set()
