"""Framing, usage, and how a stream ends; see the package for the list."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine, expected_text, expected_usage
from prime_inference.gateway.clocks import ClockLimits
from tests.gateway.conftest import StartGateway
from tests.gateway.running import MESSAGES, RunningGateway, chat
from tests.gateway.scripted_engine import (
    DONE,
    STREAM_HEAD,
    ScriptedEngine,
    answer,
    delta,
    event,
    scripted,
    usage,
)

WITH_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
SHORT = ClockLimits(first_token=0.2, idle=0.2, tail=0.2)


async def test_an_event_may_span_two_chunks(start_gateway: StartGateway):
    """envoyproxy/ai-gateway#2162, vllm-project/aibrix#2638, envoyproxy/envoy#45437."""
    last = usage(7, 9)
    pieces = [STREAM_HEAD, delta(content="hi"), delta("stop"), last[:30], last[30:], DONE]
    async with ScriptedEngine(pieces) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(**WITH_USAGE)
        (generation,) = await gateway.generations(1)
    assert streamed.chunks[-1]["usage"]["total_tokens"] == 16
    assert generation["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
async def test_events_may_end_in_any_line_end_split_anywhere(
    start_gateway: StartGateway, end: bytes
):
    """higress-group/higress#4616."""
    body = b"".join([delta(content="one"), delta(content="two"), delta("stop"), usage(1, 2), DONE])
    body = body.replace(b"\n", end)
    bytewise = [body[n : n + 1] for n in range(len(body))]
    async with ScriptedEngine([STREAM_HEAD, *bytewise]) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(**WITH_USAGE)
    assert streamed.text() == "onetwo"
    assert streamed.chunks[-1]["usage"]["total_tokens"] == 3
    assert streamed.done


@pytest.mark.parametrize("cut", [1, 2], ids=["one line end", "no line end"])
async def test_an_event_that_the_end_of_the_body_completes_counts(
    start_gateway: StartGateway, cut: int
):
    """higress-group/higress#4616: an unterminated tail is flushed at the end."""
    async with scripted(delta(content="hi"), delta("stop"), usage(7, 9)[:-cut]) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(**WITH_USAGE)
    assert streamed.chunks[-1]["usage"]["total_tokens"] == 16
    assert streamed.done


async def test_an_event_without_end_is_an_error_and_not_a_growing_buffer(
    start_gateway: StartGateway,
):
    """higress-group/higress#4616: events are capped."""
    endless = [b'data: {"choices":[{"index":0,"delta":{"content":"', *[b"x" * 65536] * 99]
    async with scripted(delta(content="hi"), *endless) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
        assert engine.written < 99
    assert streamed.text() == "hi"
    assert streamed.error is not None
    assert streamed.error["code"] == "upstream_malformed"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_body_that_cannot_be_decoded_is_an_error_and_not_silence(
    start_gateway: StartGateway, stream: bool
):
    """envoyproxy/ai-gateway#1894: 200 with 80 KB, and the client got 0 bytes and hung."""
    garbage = bytes(range(256)) * 320
    async with ScriptedEngine([answer(garbage, 200, "content-encoding: gzip")]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat(stream=stream)
    assert response.status_code == 502
    assert response.json()["error"]["code"] == "upstream_malformed"


async def test_a_character_may_be_split_over_chunks(start_gateway: StartGateway):
    """api7/aisix#111, musistudio/claude-code-router#1672, mrpulor-gh/nuphus#41."""
    text = "naïve 東京 🚀 e\u0301"
    chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
    spelled = event(json.dumps(chunk, ensure_ascii=False).encode())
    bytewise = [spelled[n : n + 1] for n in range(len(spelled))]
    async with ScriptedEngine([STREAM_HEAD, *bytewise, delta("stop"), DONE]) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
    assert streamed.text() == text
    assert "\ufffd".encode() not in streamed.raw


async def test_the_usage_chunk_has_no_choices(start_gateway: StartGateway):
    """BerriAI/litellm#28735, #8450; the upstream sends usage with the last choice."""
    last = usage(7, 9, [{"index": 0, "delta": {}, "finish_reason": "stop"}])
    async with scripted(delta(content="hi"), last, DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(**WITH_USAGE)
    *_, finish, told = streamed.chunks
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert finish["usage"] is None
    assert told["choices"] == []
    assert told["usage"]["total_tokens"] == 16


async def test_usage_is_null_on_every_chunk_but_the_last(gateway: RunningGateway):
    """BerriAI/litellm#9657."""
    *others, last = (await gateway.stream(**WITH_USAGE)).chunks
    assert [chunk["usage"] for chunk in others] == [None] * len(others)
    assert last["usage"]["total_tokens"] == sum(expected_usage(MESSAGES))


async def test_nothing_follows_usage_but_done(start_gateway: StartGateway):
    """BerriAI/litellm#17136: usage in the second to last chunk, an empty one after it."""
    async with scripted(
        delta(content="hi"), delta("stop"), usage(7, 9), event({"choices": []}), DONE
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(**WITH_USAGE)
    assert streamed.events[-1] == b"[DONE]"
    assert "usage" in streamed.chunks[-1]
    assert [bool(chunk["usage"]) for chunk in streamed.chunks].count(True) == 1


async def test_usage_is_accounted_though_the_client_does_not_ask(
    gateway: RunningGateway, engine: MockEngine
):
    """BerriAI/litellm#23847, ferro-labs/ai-gateway#281: zero cost."""
    streamed = await gateway.stream()
    assert all("usage" not in chunk for chunk in streamed.chunks)
    assert engine.requests[0].json["stream_options"]["include_usage"] is True
    (generation,) = await gateway.generations(1)
    assert generation["usage"]["completion_tokens"] == 64


@pytest.mark.parametrize("behaviour", ["cut-after-5", "end-after-5"])
async def test_an_upstream_that_closes_in_mid_answer_is_an_error_in_band(
    gateway: RunningGateway, engine: MockEngine, behaviour: str
):
    """Portkey-AI/gateway#1797: a cut stream ended like a whole one."""
    engine.behave(behaviour)
    streamed = await gateway.stream()
    assert streamed.text() == expected_text(MESSAGES, 5)
    assert streamed.error is not None
    assert not streamed.done
    (generation,) = await gateway.generations(1)
    assert generation["outcome"] == "failed"


IN_BAND = {
    "openai": {"error": {"message": "overloaded", "type": "server_error", "code": None}},
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "text": {"error": "overloaded"},
    "finish": {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]},
    "abort": {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]},
}


@pytest.mark.parametrize("shape", IN_BAND)
async def test_an_error_in_band_before_the_first_token_fails_over(
    start_gateway: StartGateway, spare: MockEngine, shape: str
):
    """BerriAI/litellm#24004, #24005: logged as a success, 0 fallbacks in 80 minutes."""
    async with scripted(event(IN_BAND[shape]), DONE) as engine:
        gateway = await start_gateway(engine.base_url, spare)
        streamed = await gateway.stream()
        await gateway.generations(1)
        assert len(engine.bodies) == 1
    assert streamed.text() == expected_text(MESSAGES)
    assert streamed.done


@pytest.mark.parametrize("shape", IN_BAND)
async def test_an_error_in_band_in_mid_answer_is_logged_as_a_failure(
    start_gateway: StartGateway, shape: str
):
    """BerriAI/litellm#24005."""
    async with scripted(delta(content="hi"), event(IN_BAND[shape]), DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
        (generation,) = await gateway.generations(1)
    assert streamed.error is not None
    assert not streamed.done
    assert generation["outcome"] == "failed"


async def test_nothing_is_said_twice(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    """BerriAI/litellm#32835: an error in mid-stream was taken for one before the first chunk."""
    gateway = await start_gateway(engine, spare)
    engine.behave("cut-after-1")
    streamed = await gateway.stream()
    assert streamed.text() == expected_text(MESSAGES, 1)
    assert spare.requests == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("behaviour", ["status-500", "status-429", "reset", "end-after-0"])
async def test_streams_fail_over_as_whole_answers_do(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    behaviour: str,
    stream: bool,
):
    """BerriAI/litellm#29808, #26067, #6957: stream errors escaped the retries."""
    gateway = await start_gateway(engine, spare, clocks=ClockLimits(total=0.3))
    engine.behave(behaviour)
    assert (await gateway.chat(stream=stream)).status_code == 200
    assert len(spare.requests) == 1


async def test_an_error_in_mid_stream_ends_everything(gateway: RunningGateway, engine: MockEngine):
    """BerriAI/litellm#26015: a 429 in mid-stream spun the processor at 100 %."""
    engine.behave("error-after-5")
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        received = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert received.count(b'"error":') == 1
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)  # and no byte more
        assert await gateway.metric("prime_requests_in_flight") == 0
        writer.write(gateway.request("/models", method="GET"))  # the connection goes on
        assert b"200 OK" in await reader.readline()


async def test_the_first_token_and_the_pause_between_tokens_have_clocks_of_their_own(
    start_gateway: StartGateway, engine: MockEngine
):
    """BerriAI/litellm#19184, BlockRunAI/Franklin#74: one timer for both."""
    gateway = await start_gateway(engine, clocks=ClockLimits(first_token=5, idle=0.2))
    engine.behave("slow-first-500ms")
    assert (await gateway.stream()).done
    engine.behave("stall-after-5.stall-5s")
    streamed = await gateway.stream()
    assert streamed.error is not None
    assert streamed.error["metadata"]["clock"] == "idle"


async def test_bytes_flow_while_the_first_token_takes_long(
    start_gateway: StartGateway, engine: MockEngine
):
    """BerriAI/litellm#34819, #34374: a load balancer cut streams that were silent for 60 s."""
    gateway = await start_gateway(engine, keep_alive_seconds=0.1)
    engine.behave("slow-first-2s")
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        async with asyncio.timeout(1):
            await reader.readuntil(b": keep-alive\n\n")
            await reader.readuntil(b": keep-alive\n\n")


async def test_an_error_event_says_error_and_the_stream_ends_right_after(
    gateway: RunningGateway, engine: MockEngine
):
    """damianvtran/local-operator#223: clients ignored it and waited on."""
    engine.behave("error-after-5")
    async with gateway.connect() as (reader, writer), asyncio.timeout(1):
        writer.write(gateway.request("/chat/completions", chat(stream=True), version="1.0"))
        received = await reader.read(-1)  # until the gateway closes
    last = json.loads(received.rstrip().rpartition(b"data: ")[2])
    assert last["choices"] == [{"index": 0, "delta": {}, "finish_reason": "error"}]
    assert last["error"]["message"]
    assert last["object"] == "chat.completion.chunk"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
async def test_code_and_type_of_an_error_are_strings_whatever_the_upstream_says(
    start_gateway: StartGateway, status: int
):
    """vercel/ai#21360: error.code was null."""
    body = {"error": {"message": "no", "type": None, "param": None, "code": status}}
    async with ScriptedEngine([answer(body, status)]) as engine:
        gateway = await start_gateway(engine.base_url)
        error = (await gateway.chat()).json()["error"]
    assert isinstance(error["code"], str)
    assert isinstance(error["type"], str)


async def test_the_finish_reason_is_null_until_the_last_chunk(start_gateway: StartGateway):
    """ollama/ollama#4357: an empty string instead of null."""
    async with scripted(delta("", content="a"), delta("", content="b"), delta("stop"), DONE) as e:
        gateway = await start_gateway(e.base_url)
        streamed = await gateway.stream()
    assert streamed.finish_reasons() == [None, None, "stop"]


async def test_the_finish_reason_is_on_the_last_chunk_only(start_gateway: StartGateway):
    """BerriAI/litellm#31634: it was set on chunks in the middle."""
    async with scripted(
        delta("stop", content="a"), delta("stop", content="b"), delta("length"), DONE
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
    assert streamed.text() == "ab"
    assert streamed.finish_reasons() == [None, None, "length"]


async def test_a_finish_reason_in_the_middle_is_none(start_gateway: StartGateway):
    """BerriAI/litellm#31634: an answer that goes on after it, and is cut, is not whole."""
    async with scripted(delta("stop", content="a"), delta(content="b"), DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
    assert streamed.text() == "ab"
    assert streamed.error is not None
    assert not streamed.done


async def test_content_after_a_finish_reason_is_waited_for(start_gateway: StartGateway):
    """BerriAI/litellm#31634: a finish reason is not the end of what goes on.

    That the tail's clock starts over with it is shown on a clock set by hand, in
    test_deadlines.
    """
    slow = [delta("stop", content="a"), *[b": wait\n\n"] * 30, delta("stop", content="b"), DONE]
    async with scripted(delta("stop", content="z"), *slow) as engine:
        gateway = await start_gateway(
            engine.base_url, clocks=ClockLimits(first_token=5, idle=5, tail=5)
        )
        streamed = await gateway.stream()
    assert streamed.text() == "zab"
    assert streamed.finish_reasons() == [None, None, None, "stop"]
