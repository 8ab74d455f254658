"""The turns of a conversation come back to the deployment that holds its KV cache."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, RunningGateway, eventually

Engines = Sequence[MockEngine]


@pytest.fixture(autouse=True)
def first_turns_in_order() -> None:
    """Here they go home."""


def served(engines: Engines) -> list[int]:
    return [len(engine.requests) for engine in engines]


async def home_of(gateway: RunningGateway, engines: Engines, name: str) -> int:
    """Which engine serves that session."""
    before = served(engines)
    answer = await gateway.post(
        "/chat/completions",
        {"model": "acme/echo-1", "messages": MESSAGES},
        **{"x-session-id": name},
    )
    assert answer.status_code == 200
    return [after - count for after, count in zip(served(engines), before, strict=True)].index(1)


async def test_a_named_session_stays_where_it_is_and_sessions_spread(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engines = (engine, spare)
    homes = [await home_of(gateway, engines, f"s{number}") for number in range(16)]
    assert set(homes) == {0, 1}
    assert [await home_of(gateway, engines, f"s{number}") for number in range(16)] == homes
    other = await start_gateway(engine, spare)  # every replica finds the same home
    assert [await home_of(other, engines, f"s{number}") for number in range(16)] == homes


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_a_prompt_cache_key_names_a_session_too(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, path: str
):
    gateway = await start_gateway(engine, spare)
    content = {"messages": MESSAGES} if path == "/chat/completions" else {"prompt": "Hello"}
    for key in ("a", "b", "c"):
        body = {"model": "acme/echo-1", "prompt_cache_key": key, **content}
        before = served((engine, spare))
        for _ in range(4):
            await gateway.post(path, body)
        after = served((engine, spare))
        assert sorted(b - a for a, b in zip(before, after, strict=True)) == [0, 4]


def turns(name: str, count: int) -> list[dict[str, Any]]:
    """A conversation's messages at its turn `count`."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    for turn in range(count):
        messages += [
            {"role": "user", "content": f"{name}: question {turn}"},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    return messages[:-1]


@pytest.mark.parametrize("system", [True, False])
async def test_a_conversation_without_a_name_is_known_by_its_beginning(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, system: bool
):
    gateway = await start_gateway(engine, spare)
    homes = []
    for number in range(12):
        before = served((engine, spare))
        for turn in range(1, 5):
            await gateway.chat(messages=turns(f"talk {number}", turn)[not system :])
        after = served((engine, spare))
        moved = [b - a for a, b in zip(before, after, strict=True)]
        assert sorted(moved) == [0, 4]
        homes.append(moved.index(4))
    assert set(homes) == {0, 1}


async def test_the_name_goes_to_dynamos_router_as_a_key_of_ours(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine)
    await gateway.post("/chat/completions", {"model": "acme/echo-1", "messages": MESSAGES},
                       **{"x-session-id": "secret name"})  # fmt: skip
    await gateway.chat(prompt_cache_key="secret name")
    await gateway.chat(prompt_cache_key="another")
    await gateway.chat()
    headers = [seen.header("x-dynamo-session-id") for seen in engine.requests]
    assert headers[0] == headers[1] != headers[2]
    assert headers[0] is not None
    assert len(headers[0]) == 16
    assert headers[3] is None
    assert all("secret" not in str(seen.headers) for seen in engine.requests)


async def test_a_session_leaves_a_home_that_fails_and_comes_back(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, clocks=ClockLimits(connect=1))
    engines = (engine, spare)
    home = await home_of(gateway, engines, "mine")
    engines[home].behave("status-500")
    other = 1 - home
    before = len(engines[other].requests)
    for _ in range(8):  # five failures in a row open the breaker; then it is not asked
        answer = await gateway.post(
            "/chat/completions", {"model": "acme/echo-1", "messages": MESSAGES},
            **{"x-session-id": "mine"},
        )  # fmt: skip
        assert answer.status_code == 200
    assert len(engines[other].requests) == before + 8
    assert len(engines[home].requests) < 9


async def test_a_session_yields_where_its_home_is_full(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, slots=1)
    engines = (engine, spare)
    home = await home_of(gateway, engines, "mine")
    engines[home].behave("slow-first-1s")
    body = {"model": "acme/echo-1", "messages": MESSAGES}
    before = len(engines[home].requests)
    slow = asyncio.ensure_future(
        gateway.post("/chat/completions", body, **{"x-session-id": "mine"})
    )
    await eventually(lambda: len(engines[home].requests) > before)
    assert await home_of(gateway, engines, "mine") == 1 - home
    await slow
    assert await home_of(gateway, engines, "mine") == home
