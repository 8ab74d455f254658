"""A link passes bytes, refuses, swallows and heals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from prime_inference.bench.faults.link import Link
from prime_inference.engines.mock import MockEngine

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@pytest_asyncio.fixture
async def link() -> AsyncIterator[Link]:
    async with MockEngine() as engine:
        link = Link("127.0.0.1", int(engine.base_url.rpartition(":")[2].split("/")[0]))
        await link.start()
        yield link
        await link.stop()


async def ask(link: Link, client: httpx.AsyncClient) -> int:
    return (await client.post(f"{link.base_url}/chat/completions", json=BODY)).status_code


async def test_a_link_that_is_whole_passes_what_comes(link: Link):
    async with httpx.AsyncClient(trust_env=False) as client:
        assert await ask(link, client) == 200
        assert await ask(link, client) == 200
    assert link.connections == 1


async def test_a_link_that_refuses_resets_and_refuses_until_it_heals(link: Link):
    async with httpx.AsyncClient(trust_env=False) as client:
        assert await ask(link, client) == 200
        await link.refuse()
        for _ in range(2):
            with pytest.raises(httpx.TransportError):
                await ask(link, client)
        await link.heal()
        assert await ask(link, client) == 200


async def test_a_black_hole_takes_connections_and_answers_none(link: Link):
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        link.black_hole()
        asking = asyncio.create_task(ask(link, client))
        done, _ = await asyncio.wait([asking], timeout=0.3)
        assert not done
        assert link.connections == 1
        await link.heal()
        with pytest.raises(httpx.TransportError):  # what sank is lost
            await asking
        assert await ask(link, client) == 200
