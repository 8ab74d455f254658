"""Connect, first token, idle and total: four clocks, each with its own name and limit."""

from __future__ import annotations

import asyncio
import socket

import pytest

from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, eventually

LONG = dict.fromkeys(("connect", "first_token", "idle", "tail", "whole", "total"), 5.0)


def only(**short: float) -> ClockLimits:
    """Clocks of which only these are short."""
    return ClockLimits(**{**LONG, **short})


async def test_the_first_token_clock_ends_a_stream_that_does_not_begin(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, clocks=only(first_token=0.2))
    engine.behave("slow-first-20s")
    response = await gateway.chat(stream=True)
    assert response.status_code == 504
    assert response.json()["error"]["metadata"] == {"error_type": "timeout", "clock": "first_token"}


async def test_the_idle_clock_ends_a_stream_that_stops(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, clocks=only(idle=0.2))
    engine.behave("stall-after-3")
    streamed = await gateway.stream()
    assert streamed.text() == expected_text(MESSAGES, 3)
    assert streamed.error is not None
    assert streamed.error["metadata"]["clock"] == "idle"


async def test_a_slow_first_token_is_no_business_of_the_idle_clock(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, clocks=only(idle=0.2))
    engine.behave("slow-first-600ms")
    assert (await gateway.stream()).done


async def test_a_long_answer_is_no_business_of_the_first_token_and_idle_clocks(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, clocks=only(first_token=0.3, idle=0.3))
    engine.behave("pace-100ms.answer-8")
    assert (await gateway.stream()).done


async def test_a_whole_answer_has_a_shorter_limit_than_a_stream(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, clocks=only(whole=0.3))
    engine.behave("pace-100ms.answer-8")
    assert (await gateway.stream()).done
    assert (await gateway.chat()).status_code == 504


async def test_a_whole_answer_that_is_only_long_is_not_begun_anew(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, clocks=only(whole=1))
    engine.behave("pace-100ms.answer-60")
    long = asyncio.ensure_future(gateway.chat())
    await eventually(lambda: len(engine.requests) == 1)
    others = [gateway.stream(max_tokens=1) for _ in range(2)]  # each engine answers one meanwhile
    assert all(streamed.done for streamed in await asyncio.gather(*others))
    assert (await long).status_code == 504
    assert (len(engine.requests), len(spare.requests)) == (2, 1)


async def test_a_whole_answer_of_an_engine_that_answers_nobody_is_begun_anew_elsewhere(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, clocks=only(whole=0.3))
    engine.behave("silence")
    assert (await gateway.chat()).status_code == 200
    assert (len(engine.requests), len(spare.requests)) == (1, 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_total_clock_ends_an_answer_that_goes_on_and_on(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    gateway = await start_gateway(engine, clocks=only(total=0.4))
    engine.behave("pace-50ms.answer-60")
    if stream:
        streamed = await gateway.stream()
        assert streamed.text().startswith(expected_text(MESSAGES, 3))
        error = streamed.error
        assert not streamed.done
    else:
        response = await gateway.chat()
        assert response.status_code == 504
        error = response.json()["error"]
    assert error is not None
    assert error["metadata"]["clock"] == "total"


async def test_the_connect_clock_ends_a_connection_that_nobody_accepts(
    start_gateway: StartGateway,
):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        queue = [socket.socket() for _ in range(4)]  # fills the listener's queue
        for each in queue:
            each.setblocking(False)
            each.connect_ex(address)
        gateway = await start_gateway(f"http://127.0.0.1:{address[1]}/v1", clocks=only(connect=0.2))
        response = await gateway.chat()
        for each in queue:
            each.close()
    assert response.status_code == 504
    assert response.json()["error"]["metadata"]["clock"] == "connect"
