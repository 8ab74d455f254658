"""What a client may ask for is bounded, and each bound is told by the name of its field."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine
from prime_inference.wire.openai import bounds

from .running import MESSAGES, RunningGateway


def tools(count: int, **function: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": f"tool_{n}", **function}} for n in range(count)
    ]


def nested(depth: int) -> dict[str, Any]:
    """A JSON schema of that depth: objects in objects."""
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"x": schema}
    return schema


def large(size: int) -> dict[str, Any]:
    """A JSON schema of about that many bytes."""
    return {"description": "x" * size}


def format_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def messages(count: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "x"}] * count


KB = 1024
CHAT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "choices": ({"n": bounds.MAX_CHOICES}, {"n": bounds.MAX_CHOICES + 1}, "n"),
    "no choice": ({"n": 1}, {"n": 0}, "n"),
    "answer": ({"max_tokens": 4096}, {"max_tokens": 2**31}, "max_tokens"),
    "no answer": ({"max_tokens": 1}, {"max_tokens": 0}, "max_tokens"),
    "messages": (
        {"messages": messages(1024)},
        {"messages": messages(bounds.MAX_MESSAGES + 1)},
        "messages",
    ),
    "no message": ({"messages": MESSAGES}, {"messages": []}, "messages"),
    "tools": ({"tools": tools(bounds.MAX_TOOLS)}, {"tools": tools(bounds.MAX_TOOLS + 1)}, "tools"),
    "tools of one name": ({"tools": tools(2)}, {"tools": tools(1) * 2}, "tools[1].function.name"),
    "tool's name": (
        {"tools": [{"type": "function", "function": {"name": "x" * 128}}]},
        {"tools": [{"type": "function", "function": {"name": "x" * 129}}]},
        "tools[0].function.name",
    ),
    "tool schema's depth": (
        {"tools": tools(1, parameters=nested(bounds.MAX_SCHEMA_DEPTH))},
        {"tools": tools(1, parameters=nested(bounds.MAX_SCHEMA_DEPTH + 1))},
        "tools[0].function.parameters",
    ),
    "tool schema's size": (
        {"tools": tools(1, parameters=large(255 * KB))},
        {"tools": tools(1, parameters=large(257 * KB))},
        "tools[0].function.parameters",
    ),
    "tool schema's type": (
        {"tools": tools(1, parameters={})},
        {"tools": tools(1, parameters=[])},
        "tools[0].function.parameters",
    ),
    "format's enum values": (
        {"response_format": format_of({"enum": list(range(bounds.MAX_ALTERNATIVES))})},
        {"response_format": format_of({"items": {"enum": list(range(1001))}})},
        "response_format.json_schema.schema",
    ),
    "format's depth": (
        {"response_format": format_of(nested(bounds.MAX_SCHEMA_DEPTH))},
        {"response_format": format_of(nested(bounds.MAX_SCHEMA_DEPTH + 1))},
        "response_format.json_schema.schema",
    ),
    "format's size": (
        {"response_format": format_of(large(255 * KB))},
        {"response_format": format_of(large(257 * KB))},
        "response_format.json_schema.schema",
    ),
    "stops": (
        {"stop": ["x"] * bounds.MAX_STOPS},
        {"stop": ["x"] * (bounds.MAX_STOPS + 1)},
        "stop",
    ),
    "a stop's length": (
        {"stop": "x" * bounds.MAX_STOP_CHARACTERS},
        {"stop": "x" * (bounds.MAX_STOP_CHARACTERS + 1)},
        "stop",
    ),
    "an empty stop": ({"stop": ["x"]}, {"stop": [""]}, "stop[0]"),
    "logit biases": (
        {"logit_bias": {str(n): 1 for n in range(bounds.MAX_LOGIT_BIASES)}},
        {"logit_bias": {str(n): 1 for n in range(bounds.MAX_LOGIT_BIASES + 1)}},
        "logit_bias",
    ),
    "logprobs": (
        {"logprobs": True, "top_logprobs": bounds.MAX_TOP_LOGPROBS},
        {"logprobs": True, "top_logprobs": bounds.MAX_TOP_LOGPROBS + 1},
        "top_logprobs",
    ),
    "user": ({"user": "x" * 512}, {"user": "x" * 513}, "user"),
}


@pytest.mark.parametrize("name", CHAT)
async def test_a_chat_request_is_bounded(gateway: RunningGateway, engine: MockEngine, name: str):
    within, beyond, param = CHAT[name]
    assert (await gateway.chat(**within)).status_code == 200
    engine.reset()
    response = await gateway.chat(**beyond)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", param)
    assert engine.requests == []


LISTS: dict[str, tuple[str, Any, bool]] = {
    "prompts": ("/completions", ["x"] * bounds.MAX_PROMPTS, True),
    "too many prompts": ("/completions", ["x"] * (bounds.MAX_PROMPTS + 1), False),
    "token ids": ("/completions", [1] * 1000, True),
    "lists of token ids": ("/completions", [[1, 2], [3]], True),
    "an empty prompt": ("/completions", "", False),
    "no prompt": ("/completions", [], False),
    "an empty prompt among others": ("/completions", ["x", ""], False),
    "no token ids": ("/completions", [[]], False),
    "negative token ids": ("/completions", [-1], False),
    "texts and token ids": ("/completions", ["x", 1], False),
    "numbers that are no ids": ("/completions", [1.5], False),
    "inputs": ("/embeddings", ["x"] * bounds.MAX_INPUTS, True),
    "too many inputs": ("/embeddings", ["x"] * (bounds.MAX_INPUTS + 1), False),
    "an empty input": ("/embeddings", "", False),
    "null among inputs": ("/embeddings", ["x", None], False),
}


@pytest.mark.parametrize("name", LISTS)
async def test_prompts_are_bounded_and_of_one_kind(gateway: RunningGateway, name: str):
    path, value, allowed = LISTS[name]
    field = "prompt" if path == "/completions" else "input"
    response = await gateway.post(path, {"model": "acme/echo-1", field: value})
    if allowed:
        assert response.status_code == 200
        items = response.json()["choices" if path == "/completions" else "data"]
        assert len(items) == (len(value) if isinstance(value[0], str | list) else 1)
    else:
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(field)


async def test_the_dimensions_of_an_embedding_are_bounded(gateway: RunningGateway):
    request = {"model": "acme/echo-1", "input": "x", "dimensions": bounds.MAX_DIMENSIONS + 1}
    response = await gateway.post("/embeddings", request)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "dimensions"


async def test_all_choices_of_a_request_together_are_bounded(gateway: RunningGateway):
    response = await gateway.post(
        "/completions",
        {"model": "acme/echo-1", "prompt": ["x"] * bounds.MAX_PROMPTS, "n": bounds.MAX_CHOICES},
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"


async def test_a_streamed_completion_takes_one_prompt(gateway: RunningGateway):
    response = await gateway.post(
        "/completions", {"model": "acme/echo-1", "prompt": ["a", "b"], "stream": True}
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


async def test_embeddings_come_in_the_order_of_their_inputs(gateway: RunningGateway):
    one = (await gateway.post("/embeddings", {"model": "acme/echo-1", "input": "b"})).json()
    two = (await gateway.post("/embeddings", {"model": "acme/echo-1", "input": ["a", "b"]})).json()
    assert [item["index"] for item in two["data"]] == [0, 1]
    assert two["data"][1]["embedding"] == one["data"][0]["embedding"]
    assert two["usage"]["prompt_tokens"] == two["usage"]["total_tokens"] > 0
