"""What a stream is like when nothing goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine, expected_text, expected_usage

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, chat
from .scripted_engine import DONE, delta, scripted

ROUTES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": MESSAGES},
    "/completions": {"prompt": "Once upon a time"},
}
PROMPTS: dict[str, Any] = {"/chat/completions": MESSAGES, "/completions": "Once upon a time"}


@pytest.mark.parametrize("path", ROUTES)
async def test_a_stream_says_what_the_engine_said(gateway: RunningGateway, path: str):
    streamed = await gateway.stream(path, **ROUTES[path])
    assert streamed.status == 200
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed.text() == expected_text(PROMPTS[path])
    assert streamed.done
    assert streamed.error is None


@pytest.mark.parametrize("path", ROUTES)
async def test_every_chunk_carries_one_id_our_model_name_and_the_object(
    gateway: RunningGateway, path: str
):
    streamed = await gateway.stream(path, **ROUTES[path])
    heads = {(c["id"], c["model"], c["object"], c["created"]) for c in streamed.chunks}
    assert len(heads) == 1
    identity, model, kind, _ = heads.pop()
    assert model == MODEL
    assert kind == ("text_completion" if path == "/completions" else "chat.completion.chunk")
    assert identity == streamed.headers["x-generation-id"]
    assert identity.endswith(streamed.headers["x-request-id"])


async def test_the_role_comes_once_first(gateway: RunningGateway):
    streamed = await gateway.stream(n=2)
    for index in (0, 1):
        deltas = [c["delta"] for c in streamed.choices if c["index"] == index]
        assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)


@pytest.mark.parametrize("path", ROUTES)
async def test_usage_comes_once_and_last_when_asked_for(gateway: RunningGateway, path: str):
    streamed = await gateway.stream(path, stream_options={"include_usage": True}, **ROUTES[path])
    *others, last = streamed.chunks
    prompt, completion = expected_usage(PROMPTS[path])
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert streamed.done


@pytest.mark.parametrize("path", ROUTES)
async def test_no_usage_comes_unasked(gateway: RunningGateway, path: str):
    streamed = await gateway.stream(path, **ROUTES[path])
    assert all("usage" not in chunk for chunk in streamed.chunks)
    assert all(chunk["choices"] for chunk in streamed.chunks)


async def test_the_usage_field_of_openrouter_asks_too(gateway: RunningGateway):
    streamed = await gateway.stream(usage={"include": True})
    assert streamed.chunks[-1]["usage"]["total_tokens"] == sum(expected_usage(MESSAGES))


@pytest.mark.parametrize("path", ROUTES)
async def test_the_finish_reason_is_on_the_last_chunk_only(gateway: RunningGateway, path: str):
    *others, last = (await gateway.stream(path, **ROUTES[path])).finish_reasons()
    assert set(others) == {None}
    assert last == "stop"


async def test_a_length_limit_ends_the_answer_with_length(gateway: RunningGateway):
    streamed = await gateway.stream(max_tokens=7)
    assert streamed.text() == expected_text(MESSAGES, 7)
    assert streamed.finish_reasons()[-1] == "length"


async def test_each_choice_has_its_own_text_and_finish_reason(gateway: RunningGateway):
    streamed = await gateway.stream(n=3)
    for index in range(3):
        assert streamed.text(index) == expected_text(MESSAGES, choice=index)
        assert [r for r in streamed.finish_reasons(index) if r] == ["stop"]
    assert streamed.done


async def test_an_empty_answer_is_a_stream_with_a_role_and_a_finish_reason(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("answer-0")
    streamed = await gateway.stream()
    assert [c["delta"].get("role") for c in streamed.choices] == ["assistant"]
    assert streamed.finish_reasons() == ["stop"]
    assert streamed.done


async def test_chunks_are_passed_on_as_they_come(gateway: RunningGateway, engine: MockEngine):
    engine.behave("stall-after-2")
    async with gateway.connect() as (reader, writer), asyncio.timeout(5):
        writer.write(gateway.request("/chat/completions", chat(stream=True)))
        received = b""
        while received.count(b'"content"') < 2:
            received += await reader.read(65536)
    assert engine.requests[0].tokens == 2


async def test_logprobs_are_passed_on_with_their_tokens(gateway: RunningGateway):
    streamed = await gateway.stream(logprobs=True, top_logprobs=2, max_tokens=5)
    entries = [c["logprobs"]["content"][0] for c in streamed.choices if c["logprobs"]]
    assert "".join(entry["token"] for entry in entries) == expected_text(MESSAGES, 5)
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_logprobs_alone_come_without_alternatives(
    start_gateway: StartGateway, engine: MockEngine, kind: str, stream: bool
):
    gateway = await start_gateway(engine, kinds=[kind])
    if stream:
        choices = (await gateway.stream(logprobs=True, max_tokens=2)).choices
    else:
        choices = (await gateway.chat(logprobs=True, max_tokens=2)).json()["choices"]
    entries = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert len(entries) == 2
    assert all(set(entry) == {"token", "logprob", "bytes", "top_logprobs"} for entry in entries)
    assert all(entry["top_logprobs"] == [] for entry in entries)
    # llama.cpp gives 20 where none are asked for, and no logprobs at all for 0
    assert engine.requests[0].json.get("top_logprobs") == (1 if kind == "llama.cpp" else None)


async def test_a_client_that_reads_slowly_holds_the_engine_back_and_loses_nothing(
    start_gateway: StartGateway,
):
    pieces = [delta(content="x" * 100_000) for _ in range(300)]
    async with scripted(*pieces, delta("stop"), DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        ask = gateway.request("/chat/completions", chat(stream=True), version="1.0")
        async with gateway.connect(receive_buffer=64 * 1024) as (reader, writer):
            writer.write(ask)
            await reader.readuntil(b"\r\n\r\n")
            written = -1
            while engine.written > written:  # until everything in between is full
                written = engine.written
                await asyncio.sleep(0.2)
            assert written < len(pieces)
            received = await reader.read(-1)
    assert received.count(b"x" * 100_000) == 300
    assert received.endswith(b"data: [DONE]\n\n")


async def test_a_client_of_http_1_0_reads_a_stream_until_the_connection_closes(
    gateway: RunningGateway,
):
    received = await gateway.exchange(
        gateway.request("/chat/completions", chat(stream=True), version="1.0")
    )
    assert b"transfer-encoding" not in received.lower()
    assert received.endswith(b"data: [DONE]\n\n")


async def test_many_streams_at_once_do_not_mix(start_gateway: StartGateway, engine: MockEngine):
    gateway = await start_gateway(engine)
    engine.behave("pace-1ms")
    prompts = [f"story number {number}" for number in range(50)]
    streams = await asyncio.gather(
        *(gateway.stream(messages=[{"role": "user", "content": p}]) for p in prompts)
    )
    for prompt, streamed in zip(prompts, streams, strict=True):
        assert streamed.text() == expected_text([{"role": "user", "content": prompt}])


async def test_an_engine_that_does_not_heed_the_limit_is_ended_soon_after_it(
    start_gateway: StartGateway,
):
    async with scripted(*[delta(content="x")] * 500) as flood:
        gateway = await start_gateway(flood.base_url)
        streamed = await gateway.stream(max_tokens=5)
    assert streamed.done
    assert 5 <= len(streamed.text()) < 100
    assert streamed.chunks[-1]["choices"][0]["finish_reason"] == "length"
