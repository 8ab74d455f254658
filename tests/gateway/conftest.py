"""Gateways and engines for a test, on its own event loop: the one that the product runs on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from prime_inference.adapters.files.key_store import FileKeyStore
from prime_inference.domain.models import GatewayParser
from prime_inference.engines.mock import MockEngine
from prime_inference.gateway import tries
from tests.redis_server import RedisServer, running_redis

from .running import OTHER_MODEL, RunningGateway, begin_in_order, deployment, running

StartGateway = Callable[..., Awaitable[RunningGateway]]


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def first_turns_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_in_order(monkeypatch)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the rounds of a request, so that a failure does not take 1.25 s to be told."""
    monkeypatch.setattr(tries, "PAUSES", (0.02, 0.1))


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine(context_tokens=4096) as engine:
        yield engine


@pytest_asyncio.fixture
async def spare() -> AsyncIterator[MockEngine]:
    """A second engine, for gateways that have one to fail over to."""
    async with MockEngine(context_tokens=4096) as engine:
        yield engine


@pytest.fixture(scope="session")
def state_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with its key. A new one is synchronised to disk, which takes its time."""
    folder = tmp_path_factory.mktemp("template") / "state"
    FileKeyStore.open(folder, 0)
    return folder


@pytest_asyncio.fixture
async def start_gateway(tmp_path: Path, state_template: Path) -> AsyncIterator[StartGateway]:
    """Starts gateways over engines (or base URLs); options as `running` takes them.

    `slots`, `tool_parser` and `tokens_per_second` go into each deployment, `kinds` are what the
    engines are.
    """
    async with AsyncExitStack() as stack:
        started = 0

        async def start(
            *engines: MockEngine | str,
            slots: int = 256,
            kinds: Sequence[str] = (),
            tool_parser: GatewayParser | None = None,
            tokens_per_second: int | None = None,
            **options: Any,
        ) -> RunningGateway:
            nonlocal started
            started += 1
            more: dict[str, Any] = {} if tool_parser is None else {"tool_parser": tool_parser}
            more |= {"slots": slots, "tokens_per_second": tokens_per_second}
            urls = [each if isinstance(each, str) else each.base_url for each in engines]
            deployments = [
                deployment(number, url, engine=kind, **more)
                for number, (url, kind) in enumerate(zip_longest(urls, kinds, fillvalue="vllm"))
            ]
            if urls:
                deployments.append(deployment(99, urls[0], id="vision", model=OTHER_MODEL))
            state_dir = tmp_path / f"gateway-{started}"
            shutil.copytree(state_template, state_dir)
            return await stack.enter_async_context(running(state_dir, deployments, **options))

        yield start


@pytest_asyncio.fixture
async def gateway(start_gateway: StartGateway, engine: MockEngine) -> RunningGateway:
    """A gateway in front of `engine`."""
    return await start_gateway(engine)


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of the test's own, to be killed and frozen."""
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server
