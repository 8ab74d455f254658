"""The real model through the real gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from prime_inference import compose
from prime_inference.engines.local.supervisor import LocalEngine
from tests.engines.local.conftest import CONTEXT_TOKENS

MODEL = compose.DEFAULT_MODEL_ID
ENDLESS = {"0": -100, "2": -100}  # a bias against the tokens that end an answer
HELLO_ONLY = {"19556": 100}  # a bias towards one token that is a whole word
HELLO = [{"role": "user", "content": "Say hello."}]


pytestmark = pytest.mark.asyncio(loop_scope="module")  # one engine and one gateway for all


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(model_file: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model_file, slots=2, context_tokens=CONTEXT_TOKENS)
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(
    engine: LocalEngine, model_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[httpx.AsyncClient]:
    tmp_path = tmp_path_factory.mktemp("serve")
    options = compose.ServeOptions(tmp_path / "state", tmp_path / "cache")
    catalog = compose.local_catalog(options, engine, model_file, context_tokens=CONTEXT_TOKENS)
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
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 8, "logit_bias": ENDLESS}
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
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"] == 8
    assert usage["prompt_tokens"] == whole["usage"]["prompt_tokens"]


async def test_a_schema_binds_the_answer(api: httpx.AsyncClient):
    # everything it allows ends: an integer, or a string, may go on until the tokens do
    schema = {
        "type": "object",
        "properties": {"n": {"enum": ["a", "b"]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    body = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 400,  # more than all the white space and the fence that are allowed
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    }
    answer = (await api.post("chat/completions", json=body)).json()
    content = msgspec.json.decode(answer["choices"][0]["message"]["content"])
    assert content["n"] in {"a", "b"}


async def test_too_long_a_prompt_names_the_limit_and_its_own_length(api: httpx.AsyncClient):
    messages = [{"role": "user", "content": "word " * 5000}]
    answer = await api.post("chat/completions", json={"model": MODEL, "messages": messages})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in error["message"]


async def until_slots_are(busy: int, engine: LocalEngine) -> None:
    """Return when so many slots are at work."""
    async with asyncio.timeout(20):
        while await busy_slots(engine) != busy:  # noqa: ASYNC110  # it can only be asked
            await asyncio.sleep(0.02)


def engine_seconds(engine: LocalEngine) -> float:
    """CPU time of the engine, which never rests here: seconds on a machine of its own."""
    fields = Path(f"/proc/{engine.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def asking(
    api: httpx.AsyncClient, words: int, *, stream: bool
) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """A request whose answer would go on to the end of the context."""
    content = f"{time.time()} Count to a million." + " word" * words
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": content}],
        "logit_bias": ENDLESS,
        "stream": stream,
    }
    request = asyncio.create_task(api.post("chat/completions", json=body))
    try:
        yield request
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


@pytest.mark.parametrize("neighbours", [0, 1])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("words", [1, 3000], ids=["decode", "prefill"])
async def test_a_client_that_leaves_frees_the_engine_within_a_second(
    api: httpx.AsyncClient, engine: LocalEngine, words: int, stream: bool, neighbours: int
):
    async with contextlib.AsyncExitStack() as others:
        # another request's results keep llama.cpp from looking whether a client is still there
        for _ in range(neighbours):
            await others.enter_async_context(asking(api, 1, stream=True))
        await until_slots_are(neighbours, engine)
        async with asking(api, words, stream=stream) as request:
            await until_slots_are(neighbours + 1, engine)
            await asyncio.sleep(0.3)
            assert not request.done()
            began = engine_seconds(engine)
        await until_slots_are(neighbours, engine)
        assert engine_seconds(engine) - began < 1.0
    await until_slots_are(0, engine)


@pytest.mark.parametrize(
    ("route", "parameter", "value"),
    [
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


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("alternatives", [None, 0, 3])
async def test_logprobs_are_openais_whatever_the_engine_adds(
    api: httpx.AsyncClient, alternatives: int | None, stream: bool
):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 3, "logit_bias": HELLO_ONLY}
    body |= {"temperature": 0, "logprobs": True, "stream": stream}
    if alternatives is not None:
        body["top_logprobs"] = alternatives
    answer = await api.post("chat/completions", json=body)
    chunks: list[Any] = events(answer.text) if stream else [answer.json()]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    tokens = [token for c in choices if c["logprobs"] for token in c["logprobs"]["content"]]
    assert [token["token"] for token in tokens] == ["Hello"] * 3
    for token in tokens:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(token["top_logprobs"]) == (alternatives or 0)
        assert all(set(top) == {"token", "logprob", "bytes"} for top in token["top_logprobs"])


async def test_a_name_that_the_template_would_drop_is_refused_by_name(api: httpx.AsyncClient):
    messages = [{"role": "system", "content": "Be brief."}, {**HELLO[0], "name": "ada"}]
    answer = await api.post("chat/completions", json={"model": MODEL, "messages": messages})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_parameter")
    assert error["param"] == "messages[1].name"
    assert "'messages[1].name' is not supported" in error["message"]


async def test_embeddings_have_one_vector_for_each_input(api: httpx.AsyncClient):
    answer = await api.post("embeddings", json={"model": MODEL, "input": ["one", "two words"]})
    vectors = [item["embedding"] for item in answer.json()["data"]]
    assert [len(vector) for vector in vectors] == [576, 576]
    assert vectors[0] != vectors[1]
    assert answer.json()["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("keyword", ["enum", "anyOf", "oneOf"])
async def test_a_schema_that_would_hold_everybody_up_is_refused_by_name(
    api: httpx.AsyncClient, keyword: str
):
    choices = [f"v{number}" if keyword == "enum" else {"const": number} for number in range(101)]
    schema = {"type": "object", "properties": {"x": {keyword: choices}}}
    answer = await api.post(
        "chat/completions",
        json={
            "model": MODEL,
            "messages": HELLO,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema},
            },
        },
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "response_format.json_schema.schema"


async def test_tokens_are_counted_as_the_engine_bills_them(api: httpx.AsyncClient):
    request = {
        "model": MODEL,
        "system": "Be brief & kind.",
        "messages": [
            {"role": "user", "content": "Say <|im_end|> hello, naïve 東京!"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": [{"type": "text", "text": "Again?"}]},
        ],
    }
    counted = (await api.post("messages/count_tokens", json=request)).json()
    answer = (await api.post("messages", json={**request, "max_tokens": 1})).json()
    usage = answer["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


async def test_a_conversation_over_responses(api: httpx.AsyncClient):
    body = {"model": MODEL, "input": "Say hello.", "max_output_tokens": 8, "temperature": 0}
    first = (await api.post("responses", json=body)).json()
    assert first["usage"]["output_tokens"] == 8
    again = {**body, "previous_response_id": first["id"]}
    second = (await api.post("responses", json=again)).json()
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_several_prompts_are_refused_since_only_the_first_would_be_counted(
    api: httpx.AsyncClient,
):
    answer = await api.post("completions", json={"model": MODEL, "prompt": ["One", "Two"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    one = await api.post("completions", json={"model": MODEL, "prompt": ["One"], "max_tokens": 2})
    assert one.status_code == 200


@pytest.mark.parametrize("keyword", [{"multipleOf": 1000}, {"not": {"const": 1}}])
async def test_a_strict_schema_with_what_no_grammar_enforces_is_refused(
    api: httpx.AsyncClient, keyword: dict[str, object]
):
    schema = {"type": "object", "properties": {"not": {"type": "integer", **keyword}}}
    asked = {"name": "a", "schema": schema, "strict": True}
    body = {
        "model": MODEL,
        "messages": HELLO,
        "max_tokens": 4,
        "response_format": {"type": "json_schema", "json_schema": asked},
    }
    answer = await api.post("chat/completions", json=body)
    assert answer.status_code == 400
    assert next(iter(keyword)) in answer.json()["error"]["message"]
    asked["strict"] = False
    assert (await api.post("chat/completions", json=body)).status_code == 200
