"""Gateways that share a Redis: slots, farewell, and service without it."""

from __future__ import annotations

import asyncio
from itertools import accumulate
from pathlib import Path

from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.ports.coordination import BlockAsk, BlockGrant
from tests.redis_server import RedisServer

from .conftest import StartGateway
from .running import MESSAGES, RunningGateway, deployment, running


async def ask(server: RedisServer) -> BlockGrant:
    """What one more replica would be told of the first deployment."""
    store = RedisCoordination(server.url, call_s=5, connect_s=5)
    try:
        wish = BlockAsk("engine-0", "another", 1, 8, 8, 0, 0, 0, ttl_s=10)
        (grant,) = await store.lease_blocks([wish])
    finally:
        await store.close()
    return grant


def most_at_a_time(engine: MockEngine) -> int:
    """Requests that the engine had at the same moment."""
    changes = [(seen.received_at, 1) for seen in engine.requests]
    changes += [(seen.received_at + seen.seconds, -1) for seen in engine.requests]
    return max(accumulate(change for _, change in sorted(changes)))


async def test_gateways_together_never_use_more_slots_than_there_are(
    start_gateway: StartGateway, engine: MockEngine, redis_server: RedisServer
):
    gateways = [await start_gateway(engine, slots=8, redis_url=redis_server.url) for _ in range(3)]
    engine.behave("slow-first-30ms.answer-2")

    async def hammer(gateway: RunningGateway) -> list[int]:
        return [(await gateway.chat()).status_code for _ in range(6)]

    statuses = await asyncio.gather(*(hammer(gateway) for gateway in gateways for _ in range(6)))
    seen = {status for each in statuses for status in each}
    assert 200 in seen
    assert seen <= {200, 503}
    assert most_at_a_time(engine) <= 8
    assert len(engine.requests) > 8
    assert (await ask(redis_server)).holders == 4


async def test_a_gateway_that_stops_gives_its_slots_back_at_once(
    start_gateway: StartGateway, engine: MockEngine, redis_server: RedisServer, tmp_path: Path
):
    await start_gateway(engine, slots=8, redis_url=redis_server.url)
    deployments = [deployment(0, engine.base_url, slots=8)]
    async with running(tmp_path / "leaving", deployments, redis_url=redis_server.url) as leaving:
        assert (await leaving.chat()).status_code == 200
        assert (await ask(redis_server)).holders == 3
    assert (await ask(redis_server)).holders == 2


async def test_a_gateway_starts_and_serves_while_redis_is_away(
    start_gateway: StartGateway, engine: MockEngine, tmp_path: Path
):
    gateway = await start_gateway(engine, redis_url=f"unix://{tmp_path}/nothing.sock")
    streamed = await gateway.stream()
    assert (streamed.text(), streamed.done) == (expected_text(MESSAGES), True)


async def test_requests_go_on_while_redis_freezes_and_dies(
    start_gateway: StartGateway, engine: MockEngine, redis_server: RedisServer
):
    gateway = await start_gateway(engine, redis_url=redis_server.url)
    assert (await gateway.chat()).status_code == 200
    redis_server.freeze()
    try:
        assert (await gateway.chat()).status_code == 200
    finally:
        redis_server.thaw()
    redis_server.stop()
    assert (await gateway.chat()).status_code == 200
