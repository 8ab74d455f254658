"""Each request is accounted for exactly once, with the engine's own count."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine, expected_usage
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, chat, deployment, eventually, running
from .scripted_engine import DONE, ScriptedEngine, answer, delta, scripted, usage

SHORT = ClockLimits(connect=1, first_token=0.2, idle=0.2, tail=0.2, total=0.5)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_generation_is_one_line_with_exact_usage(gateway: RunningGateway, stream: bool):
    response = await gateway.chat(stream=stream, max_tokens=11)
    (generation,) = await gateway.generations(1)
    prompt, completion = expected_usage(MESSAGES, 11)
    assert generation["id"] == response.headers["x-request-id"]
    assert generation["key_id"] == gateway.key.split("_")[2]
    assert generation["tenant"] == "local"
    assert generation["route"] == "chat/completions"
    assert generation["model"] == MODEL
    assert generation["deployment"] == "engine-0"
    assert generation["streamed"] is stream
    assert (generation["outcome"], generation["status"], generation["error"]) == (
        "complete",
        200,
        "",
    )
    assert generation["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cached_tokens": 0,
        "reasoning_tokens": 0,
        "source": "upstream",
    }
    assert 0 <= generation["first_token_seconds"] <= generation["duration_seconds"] < 5


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_generation_that_our_own_stop_cuts_is_no_client_that_left(
    tmp_path: Path, engine: MockEngine, stream: bool
):
    engine.behave("pace-20ms.answer-500" if stream else "silence")
    async with running(tmp_path, [deployment(0, engine.base_url)]) as gateway:
        # not the gateway's own client, which would leave first
        reader, writer = await asyncio.open_connection(gateway.host, gateway.port)
        writer.write(gateway.request("/chat/completions", chat(stream=stream)))
        if stream:
            await reader.readuntil(b"data: ")
        await eventually(lambda: len(engine.requests) == 1)
    last = await reader.read(-1)
    assert b'"code":"shutting_down"' in last
    assert b"[DONE]" not in last
    if stream:
        assert last.endswith(b"\r\n0\r\n\r\n")  # whole as HTTP, broken off as an answer
    else:
        assert last.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in last.lower()
    writer.close()
    generation = json.loads((tmp_path / "generations.jsonl").read_text())
    assert (generation["outcome"], generation["status"], generation["error"]) == (
        "shutdown",
        503,
        "shutdown",
    )
    assert (generation["usage"]["completion_tokens"] > 0) is stream


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "fields", "error"),
    [
        ("/messages", {"messages": MESSAGES, "max_tokens": 400}, b'"type":"api_error"'),
        ("/responses", {"input": "Hello", "store": False}, b'"error":{"'),
    ],
)
async def test_our_own_stop_is_told_in_the_clients_dialect(
    tmp_path: Path,
    engine: MockEngine,
    path: str,
    fields: dict[str, Any],
    error: bytes,
    stream: bool,
):
    engine.behave("pace-20ms.answer-500")
    async with running(tmp_path, [deployment(0, engine.base_url)]) as gateway:
        reader, writer = await asyncio.open_connection(gateway.host, gateway.port)
        writer.write(gateway.request(path, {"model": MODEL, "stream": stream, **fields}))
        if stream:
            await reader.readuntil(b"delta")
        await eventually(lambda: len(engine.requests) == 1)
    last = await reader.read(-1)
    writer.close()
    assert error in last
    assert b"This gateway stops" in last
    assert last.startswith(b"HTTP/1.1 503 ") is not stream


async def test_usage_is_accounted_whether_the_client_asks_for_it_or_not(gateway: RunningGateway):
    await gateway.stream()
    await gateway.stream(stream_options={"include_usage": False})
    await gateway.stream(stream_options={"include_usage": True})
    usages = [line["usage"] for line in await gateway.generations(3)]
    assert usages[0] == usages[1] == usages[2]
    assert usages[0]["completion_tokens"] == 64


@pytest.mark.parametrize("kind", ["vllm", "openai", "llama.cpp"])
async def test_usage_of_every_kind_of_engine_is_its_own_count(
    start_gateway: StartGateway, engine: MockEngine, kind: str
):
    gateway = await start_gateway(engine, kinds=[kind])
    await gateway.stream()
    await gateway.chat()
    for line in await gateway.generations(2):
        assert line["usage"]["source"] == "upstream"
        assert line["usage"]["completion_tokens"] == 64


async def test_the_metrics_and_the_log_tell_the_same(gateway: RunningGateway, engine: MockEngine):
    await asyncio.gather(*(gateway.chat(max_tokens=n + 1) for n in range(20)))
    lines = await gateway.generations(20)
    for kind in ("prompt", "completion"):
        logged = sum(line["usage"][f"{kind}_tokens"] for line in lines)
        assert await gateway.metric("prime_tokens_total", kind=kind) == logged
    assert await gateway.metric("prime_generations_total", outcome="complete") == 20
    assert len({line["id"] for line in lines}) == 20


async def test_cached_and_reasoning_tokens_are_told_and_accounted(start_gateway: StartGateway):
    counts = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    last = b"data: %b\n\n" % json.dumps({"choices": [], "usage": counts}).encode()
    async with scripted(delta(content="hi"), delta("stop"), last, DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(stream_options={"include_usage": True})
        (generation,) = await gateway.generations(1)
    assert streamed.chunks[-1]["usage"] == counts
    assert generation["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "cached_tokens": 8,
        "reasoning_tokens": 3,
        "source": "upstream",
    }


async def test_llama_cpps_timings_are_a_count_too(start_gateway: StartGateway):
    timings = {"prompt_n": 4, "cache_n": 6, "predicted_n": 2}
    chunk = {"choices": [{"index": 0, "delta": {"content": "b"}}], "timings": timings}
    last = b"data: %b\n\n" % json.dumps(chunk).encode()
    async with scripted(delta(content="a"), last, delta("stop"), DONE) as engine:
        gateway = await start_gateway(engine.base_url, kinds=["llama.cpp"])
        await gateway.stream()
        (generation,) = await gateway.generations(1)
        assert engine.bodies[0]["timings_per_token"] is True
    assert generation["usage"]["prompt_tokens"] == 10
    assert generation["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("behaviour", ["cut-after-5", "error-after-5", "stall-after-5"])
async def test_a_failure_in_mid_answer_is_accounted_with_what_was_delivered(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    await gateway.stream()
    (generation,) = await gateway.generations(1)
    assert generation["outcome"] == "failed"
    assert generation["usage"]["completion_tokens"] == 5


async def test_a_failover_is_one_generation_on_the_deployment_that_answered(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("end-after-0")
    await gateway.stream()
    (generation,) = await gateway.generations(1)
    assert (generation["outcome"], generation["deployment"]) == ("complete", "engine-1")
    assert generation["usage"]["completion_tokens"] == 64


async def test_a_refused_request_is_accounted_with_its_code(
    gateway: RunningGateway, engine: MockEngine
):
    await gateway.chat(model="acme/nothing")
    await gateway.chat(prediction={"type": "content", "content": "x"})
    engine.behave("context-length")
    await gateway.chat()
    lines = await gateway.generations(3)
    assert [line["outcome"] for line in lines] == ["refused"] * 3
    assert [line["error"] for line in lines] == [
        "model_not_found",
        "unsupported_parameter",
        "context_length_exceeded",
    ]
    assert lines[0]["model"] == ""  # what a client made up becomes no label


async def test_an_upstream_failure_is_accounted_with_its_code(start_gateway: StartGateway):
    async with ScriptedEngine([answer({}, 500)]) as engine:
        gateway = await start_gateway(engine.base_url)
        await gateway.chat()
        (generation,) = await gateway.generations(1)
    assert (generation["outcome"], generation["error"]) == ("failed", "upstream_failed")
    assert generation["status"] == 502


@pytest.mark.parametrize("path", ["/completions", "/embeddings"])
async def test_other_routes_are_accounted_too(gateway: RunningGateway, path: str):
    field = "prompt" if path == "/completions" else "input"
    response = await gateway.post(path, {"model": MODEL, field: ["a b", "c"]})
    (generation,) = await gateway.generations(1)
    assert generation["route"] == path[1:]
    assert generation["usage"]["prompt_tokens"] == response.json()["usage"]["prompt_tokens"] > 0


async def test_usage_that_is_no_count_is_not_believed(start_gateway: StartGateway):
    async with scripted(delta(content="hi"), usage(prompt=-3), DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
    assert streamed.error is not None
    assert streamed.error["code"] == "upstream_malformed"


async def test_the_log_can_be_read_by_its_owner_only(gateway: RunningGateway):
    await gateway.chat()
    await gateway.generations(1)
    for name in ("generations.jsonl", "api_key", "keys.json"):
        assert (gateway.state_dir / name).stat().st_mode & 0o077 == 0
    assert gateway.state_dir.stat().st_mode & 0o077 == 0
