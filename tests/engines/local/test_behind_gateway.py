"""The real model through the real gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
import pytest_asyncio

from prime_inference import compose
from prime_inference.engines.local.supervisor import LocalEngine

MODEL = compose.DEFAULT_MODEL_ID
HELLO = [{"role": "user", "content": "Say hello."}]


@pytest_asyncio.fixture
async def api(
    engine: LocalEngine, model_file: Path, tmp_path: Path
) -> AsyncIterator[httpx.AsyncClient]:
    options = compose.ServeOptions(tmp_path / "state", tmp_path / "cache")
    catalog = compose.local_catalog(options, engine, model_file, context_tokens=4096)
    listen = compose.ListenOptions(options.state_dir, port=0, control_port=0)
    async with compose.listening(catalog, listen, lambda: None) as (endpoint, _):
        found = endpoint(MODEL)
        async with httpx.AsyncClient(
            base_url=found.base_url,
            headers={"authorization": f"Bearer {found.api_key}"},
            timeout=30,
        ) as client:
            yield client


async def busy_slots(engine: LocalEngine) -> int:
    async with httpx.AsyncClient(timeout=30) as client:
        slots = (await client.get(engine.base_url.removesuffix("/v1") + "/slots")).json()
    return sum(slot["is_processing"] for slot in slots)


def events(text: str) -> list[dict[str, object]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [msgspec.json.decode(line) for line in lines]


async def test_a_streamed_answer_ends_with_exact_usage(api: httpx.AsyncClient):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "temperature": 0, "seed": 1}
    whole = (await api.post("chat/completions", json=body)).json()
    streamed = events(
        (
            await api.post(
                "chat/completions",
                json={**body, "stream": True, "stream_options": {"include_usage": True}},
            )
        ).text
    )
    usage = streamed[-1]["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]


async def test_a_schema_binds_the_answer(api: httpx.AsyncClient):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    body = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 40,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    answer = (await api.post("chat/completions", json=body)).json()
    content = msgspec.json.decode(answer["choices"][0]["message"]["content"])
    assert isinstance(content["n"], int)


async def test_too_long_a_prompt_names_the_limit_and_its_own_length(api: httpx.AsyncClient):
    messages = [{"role": "user", "content": "word " * 5000}]
    answer = await api.post("chat/completions", json={"model": MODEL, "messages": messages})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in error["message"]


async def until_slots_are(busy: int, engine: LocalEngine, seconds: float) -> float:
    """Seconds until so many slots are at work."""
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while await busy_slots(engine) != busy:  # noqa: ASYNC110  # it can only be asked
            await asyncio.sleep(0.02)
    return time.monotonic() - began


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_a_client_that_leaves_frees_the_engine_within_a_second(
    api: httpx.AsyncClient, engine: LocalEngine, phase: str, stream: bool
):
    content = f"{time.time()} Count to a million." + " word" * (3000 if phase == "prefill" else 1)
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 900,
        "stream": stream,
    }
    request = asyncio.create_task(api.post("chat/completions", json=body))
    await until_slots_are(1, engine, 10)
    await asyncio.sleep(0.3 if phase == "prefill" else 1.0)
    assert not request.done()
    request.cancel()
    assert await until_slots_are(0, engine, 10) < 1.0


@pytest.mark.parametrize(
    ("route", "parameter", "value"),
    [
        ("chat/completions", "tools", [{"type": "function", "function": {"name": "f"}}]),
        ("chat/completions", "n", 2),
        ("chat/completions", "reasoning_effort", "high"),
        ("completions", "logprobs", 2),
        ("completions", "suffix", "end"),
        ("completions", "echo", True),
    ],
)
async def test_what_the_engine_would_ignore_is_refused_by_name(
    api: httpx.AsyncClient, route: str, parameter: str, value: object
):
    content = {"messages": HELLO} if route == "chat/completions" else {"prompt": "Once"}
    answer = await api.post(route, json={"model": MODEL, **content, parameter: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == parameter
