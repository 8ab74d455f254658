"""Redis computes what memory computes, whatever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.adapters.memory.coordination import MemoryCoordination
from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.domain.sharing import Sharing
from prime_inference.ports.coordination import BlockAsk, BlockGrant
from tests.conformance.asks import LONG_S
from tests.conformance.conftest import REDIS
from tests.redis_server import RedisServer, running_redis


@pytest.fixture(scope="module", params=REDIS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis"), REDIS[request.param]) as server:
        yield server


@st.composite
def _asks(draw: st.DrawFn) -> list[BlockAsk]:
    sharing = draw(st.sampled_from(Sharing))
    reservations = draw(st.sampled_from([[""], ["", "", "r"], ["", "", "r", "s"]]))
    small = st.integers(0, 40)
    return [
        BlockAsk(
            pool="d",
            holder=draw(st.sampled_from(["a", "ab", "b", "c", "d"])),
            sequence=draw(st.integers(number, number + 3)),  # some arrive out of order
            capacity=draw(st.sampled_from([7, 16, 16, 16])),
            interactive=draw(small),
            batch=draw(small),
            has=draw(st.integers(0, 6)),
            in_flight=draw(st.integers(0, 6)),
            ttl_s=LONG_S,
            sharing=sharing,
            reservation=draw(st.sampled_from(reservations)),
            reserved=draw(st.sampled_from([3, 6, 6, 6])),
            kept=draw(st.integers(0, 8)),
            safe=draw(st.integers(0, 6)),
            keep=draw(st.integers(0, 4)),
            has_batch=draw(st.integers(0, 6)),
        )
        for number in range(draw(st.integers(1, 25)))
    ]


@given(asks=_asks(), learning=st.booleans())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_ask_gets_the_same_grant(
    server: RedisServer, asks: list[BlockAsk], learning: bool
) -> None:
    learning_s = 3600.0 if learning else 0.0
    memory = MemoryCoordination(lambda: 0.0, learning_s)

    async def both() -> tuple[list[BlockGrant], list[BlockGrant]]:
        redis = RedisCoordination(server.url, learning_s=learning_s, call_s=5, connect_s=5)
        try:
            one_by_one = [(await redis.lease_blocks([ask]))[0] for ask in asks]
        finally:
            await redis.close()
        return one_by_one, list(await memory.lease_blocks(asks))

    server.command("FLUSHALL")
    from_redis, from_memory = asyncio.run(both())
    assert from_redis == from_memory
