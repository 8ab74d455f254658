"""Clients that users have, pointed at the gateway of `processes`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
import pytest_asyncio

from tests.gateway.processes import Processes


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
