"""A client that leaves ends the engine's work, frees its slot and is accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from prime_inference.engines.mock import MockEngine, expected_usage
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, RunningGateway, chat, eventually

LEFT = "client left"


async def left_by(engine: MockEngine, count: int = 1) -> float:
    """Wait until the engine saw all its clients leave; returns the seconds it took."""
    return await eventually(
        lambda: [seen.outcome for seen in engine.requests] == [LEFT] * count, seconds=1.0
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("behaviour", ["silence", "slow-first-20s", "slow-head-20s.status-500"])
async def test_a_client_that_leaves_before_the_first_token_stops_the_engine(
    gateway: RunningGateway, engine: MockEngine, behaviour: str, stream: bool
):
    engine.behave(behaviour)
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=stream)))
        await eventually(lambda: len(engine.requests) == 1)
    await left_by(engine)
    (generation,) = await gateway.generations(1)
    assert (generation["outcome"], generation["status"]) == ("cancelled", 499)
    assert generation["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
async def test_a_client_that_leaves_in_mid_stream_stops_the_engine_and_pays_for_what_it_got(
    gateway: RunningGateway, engine: MockEngine, path: str
):
    engine.behave("pace-20ms.answer-500")
    body = {"model": "acme/echo-1", "stream": True}
    body |= {"messages": MESSAGES} if "chat" in path else {"prompt": "Tell me about a river"}
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request(path, body))
        received = await reader.readuntil(b"\r\n\r\n")
        while received.count(b'"finish_reason":null') < 5:
            received += await reader.read(65536)
    await left_by(engine)
    (generation,) = await gateway.generations(1)
    assert (generation["outcome"], generation["error"]) == ("cancelled", "client_left")
    delivered = generation["usage"]["completion_tokens"]
    assert 5 <= delivered <= engine.requests[0].tokens < 100
    assert generation["usage"]["prompt_tokens"] > 0
    assert generation["usage"]["source"] == "upstream"


async def test_what_was_delivered_is_counted_where_the_engine_does_not_count_along(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, kinds=["openai"])
    engine.behave("pace-20ms.answer-500")
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        received = b""
        while received.count(b'"content"') < 5:
            received += await reader.read(65536)
    await left_by(engine)
    (generation,) = await gateway.generations(1)
    assert generation["usage"]["source"] == "counted"
    assert 5 <= generation["usage"]["completion_tokens"] <= engine.requests[0].tokens < 100


async def test_a_client_that_leaves_a_long_whole_answer_stops_the_engine(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("pace-20ms.answer-500")
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request("/chat/completions", chat()))
        await eventually(lambda: len(engine.requests) == 1)
        await asyncio.sleep(0.1)
    await left_by(engine)


async def test_a_client_that_resets_its_connection_has_left_too(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("pace-20ms.answer-500")
    with socket.create_connection((gateway.host, gateway.port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(gateway.request("/chat/completions", chat(stream=True)))
        await eventually(lambda: len(engine.requests) == 1 and engine.requests[0].tokens > 2)
    await left_by(engine)


async def test_a_client_that_leaves_while_the_engine_is_connected_to_is_no_failure(
    start_gateway: StartGateway,
):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        address = deaf.getsockname()
        queue = [socket.socket() for _ in range(4)]
        for each in queue:
            each.setblocking(False)
            each.connect_ex(address)
        gateway = await start_gateway(
            f"http://127.0.0.1:{address[1]}/v1", clocks=ClockLimits(connect=5)
        )
        async with gateway.connect() as (_, writer):
            writer.write(gateway.request("/chat/completions", chat()))
            await asyncio.sleep(0.1)
        (generation,) = await gateway.generations(1)
        for each in queue:
            each.close()
    assert generation["outcome"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_two_hundred_cancelled_requests_leak_no_slot(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    gateway = await start_gateway(engine, slots=50)
    engine.behave("slow-first-5ms.pace-5ms.answer-500")
    refused = 0

    async def leave(number: int) -> None:
        nonlocal refused
        async with gateway.connect() as (reader, writer):
            writer.write(gateway.request("/chat/completions", chat(stream=stream)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(number % 20 / 1000):  # at every stage of a request
                    refused += (await reader.readline()).startswith(b"HTTP/1.1 503")
                    await reader.read(-1)

    for first in range(0, 200, 40):
        await asyncio.gather(*(leave(n) for n in range(first, first + 40)))
        await eventually(lambda: not any(seen.outcome == "answering" for seen in engine.requests))
    assert refused == 0
    engine.behave("slow-first-100ms")  # all slots are there again
    answers = await asyncio.gather(*(gateway.chat() for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert await gateway.metric("prime_requests_in_flight") == 0


async def test_a_client_that_leaves_does_not_start_another_attempt(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("silence")
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request("/chat/completions", chat()))
        await eventually(lambda: len(engine.requests) == 1)
    await left_by(engine)
    await asyncio.sleep(0.05)
    assert spare.requests == []


async def test_a_client_that_leaves_does_not_count_against_the_deployment(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("silence")
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request("/chat/completions", chat()))
        await eventually(lambda: len(engine.requests) == 1)
    await gateway.generations(1)
    endpoints = (await gateway.get("/models/acme/echo-1/endpoints")).json()["data"]["endpoints"]
    assert endpoints[0]["uptime_last_5m"] is None


async def test_a_client_that_has_its_whole_answer_may_leave(
    gateway: RunningGateway, engine: MockEngine
):
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        await reader.readuntil(b"[DONE]")
    (generation,) = await gateway.generations(1)
    assert generation["outcome"] == "complete"
    assert generation["usage"]["completion_tokens"] == expected_usage(MESSAGES)[1]


async def test_the_connection_of_a_cancelled_request_is_not_used_again(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("pace-20ms.answer-500.first-1")
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        await reader.readuntil(b"content")
    for _ in range(3):
        assert (await gateway.chat()).json()["usage"]["completion_tokens"] == 64
