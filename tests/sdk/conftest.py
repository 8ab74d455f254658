"""A gateway and an engine as child processes, and clients that users have, pointed at it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
import pytest_asyncio

from tests.gateway.processes import Processes, child_processes


@pytest.fixture(scope="session")
def shared_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with child_processes(tmp_path_factory.mktemp("processes")) as processes:
        yield processes


@pytest.fixture
def processes(shared_processes: Processes) -> Iterator[Processes]:
    """The shared processes, with an engine that behaves and remembers nothing."""
    shared_processes.reset()
    yield shared_processes
    shared_processes.reset()


@pytest.fixture
def client(processes: Processes) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=processes.base_url, api_key=processes.key, max_retries=0, timeout=10
    ) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(processes: Processes) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=processes.base_url, api_key=processes.key, max_retries=0, timeout=10
    ) as client:
        yield client
