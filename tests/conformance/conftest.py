"""The stores that pass the conformance suite, each as real as it gets."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prime_inference.adapters.memory.coordination import MemoryCoordination
from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.ports.coordination import Coordination
from tests.redis_server import RedisServer, executables, running_redis

REDIS = executables()

MakeStore = Callable[[float], Awaitable[Coordination]]


@pytest.fixture(scope="session", params=["memory", *REDIS])
def redis_or_memory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer | None]:
    """A running server, or None for the store in memory."""
    if request.param == "memory":
        yield None
        return
    with running_redis(tmp_path_factory.mktemp("redis"), REDIS[request.param]) as server:
        yield server


@pytest.fixture
async def empty_store(redis_or_memory: RedisServer | None) -> AsyncIterator[MakeStore]:
    """Makes an empty store that learns for the given time."""
    async with AsyncExitStack() as stack:

        async def make(learning_s: float) -> Coordination:
            store: Coordination
            if redis_or_memory is None:
                store = MemoryCoordination(time.monotonic, learning_s)
            else:
                redis_or_memory.command("FLUSHALL")
                # 50 ms are for production: here the machine may be busy with other tests
                store = RedisCoordination(
                    redis_or_memory.url, learning_s=learning_s, call_s=5, connect_s=5
                )
            stack.push_async_callback(store.close)
            return store

        yield make


@pytest.fixture
async def store(empty_store: MakeStore) -> Coordination:
    """An empty store that has learned all there is."""
    return await empty_store(0)


@pytest.fixture(params=REDIS)
def redis_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own, to be killed and frozen."""
    with running_redis(tmp_path, REDIS[request.param]) as server:
        yield server
