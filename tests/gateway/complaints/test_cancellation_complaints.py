"""A client that leaves; see the package for the list."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.clocks import ClockLimits
from tests.gateway.conftest import StartGateway
from tests.gateway.running import MESSAGES, MODEL, RunningGateway, chat, eventually

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", {"messages": MESSAGES}),
    "chat stream": ("/chat/completions", {"messages": MESSAGES, "stream": True}),
    "completion": ("/completions", {"prompt": "x"}),
    "completion stream": ("/completions", {"prompt": "x", "stream": True}),
}


@pytest.mark.parametrize("behaviour", ["silence", "pace-10ms.answer-2000"])
@pytest.mark.parametrize("route", ROUTES)
async def test_the_engine_stops_within_a_second_of_the_client(
    gateway: RunningGateway, engine: MockEngine, route: str, behaviour: str
):
    """BerriAI/litellm#13774, #37140, #36123, 1rgs/claude-code-proxy#114,
    sgl-project/sglang#11399, #39461, #35255, #34894: slots held for 20 to 30 minutes, 1,803
    tokens decoded for nobody."""
    engine.behave(behaviour)
    path, body = ROUTES[route]
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request(path, {"model": MODEL, **body}))
        await eventually(lambda: len(engine.requests) == 1)
        await asyncio.sleep(0.05)
    await eventually(lambda: engine.requests[0].outcome == "client left", seconds=1.0)
    assert engine.requests[0].tokens < 200


async def test_a_prefill_is_given_up_too(gateway: RunningGateway, engine: MockEngine):
    """ai-dynamo/dynamo#14775, #2152: a disconnect before the first token left it running."""
    engine.behave("slow-first-30s")
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        await eventually(lambda: len(engine.requests) == 1)
    await eventually(lambda: engine.requests[0].outcome == "client left", seconds=1.0)
    assert engine.requests[0].tokens == 0


async def test_an_attempt_is_cancelled_before_it_is_retried(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    """THUDM/slime#2340: retries doubled the load, since the first try went on."""
    gateway = await start_gateway(engine, spare, clocks=ClockLimits(first_token=0.2))
    engine.behave("slow-first-30s")
    spare.behave("slow-first-50ms")
    streaming = asyncio.ensure_future(gateway.stream())
    await eventually(lambda: len(spare.requests) == 1)
    await eventually(lambda: engine.requests[0].outcome == "client left", seconds=0.1)
    assert (await streaming).done


async def test_what_is_in_flight_is_counted_right_after_many_cancellations(
    start_gateway: StartGateway, engine: MockEngine
):
    """vllm-project/router#215: a counter leaked 400 a day, and routing collapsed."""
    gateway = await start_gateway(engine, slots=1)
    engine.behave("slow-first-30s")
    for _ in range(30):
        async with gateway.connect() as (_, writer):
            writer.write(gateway.request("/chat/completions", chat(stream=True)))
            await eventually(lambda: bool(engine.requests))
        await eventually(lambda: engine.requests[-1].outcome == "client left", seconds=1.0)
        engine.reset()
    engine.behave("")
    assert (await gateway.chat()).status_code == 200
