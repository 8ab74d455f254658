"""Every parameter of Responses and of Messages reaches the engine or is refused by its name.

As in `test_parameters`, the parameters are read from the types of the SDKs: one that a new
release brings makes these tests fail until somebody decides what becomes of it.
"""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types.responses import response_create_params

from prime_inference.engines.mock import MockEngine

from .running import MODEL, RunningGateway

OURS = "is the gateway's own business"
REFUSED = "is refused by name"

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
SAID = [{"role": "user", "content": "Hello"}]

Fate = str | dict[str, Any]
"""One of the words above, or the fields of the chat request that the engine is sent."""

FUNCTION = {"type": "function", "name": "weather", "parameters": SCHEMA}
FORMAT = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
CHAT_FORMAT = {
    "type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
}  # fmt: skip

RESPONSES: dict[str, tuple[Fate, Any]] = {
    "access_programs": (REFUSED, {"cyber": "standard"}),
    "background": (REFUSED, True),
    "background_options": (REFUSED, {"completion_window": "2h"}),
    "context_management": (REFUSED, [{"type": "compaction"}]),
    "conversation": (REFUSED, "conv_1"),
    "image": (REFUSED, {"context_compression": "auto"}),
    "include": (REFUSED, ["file_search_call.results"]),
    "input": ({"messages": SAID}, "Hello"),
    "instructions": (
        {"messages": [{"role": "system", "content": "Be brief."}, *SAID]}, "Be brief.",
    ),
    "max_output_tokens": ({"max_tokens": 9}, 9),
    "max_tool_calls": (REFUSED, 3),
    "metadata": (OURS, {"run": "7"}),
    "model": (OURS, MODEL),
    "moderation": (REFUSED, {"model": "omni"}),
    "parallel_tool_calls": ({"parallel_tool_calls": False}, False),
    "previous_response_id": (REFUSED, "resp_nothing"),
    "prompt": (REFUSED, {"id": "pmpt_1"}),
    "prompt_cache_key": (OURS, "session-7"),
    "prompt_cache_options": (REFUSED, {"mode": "explicit"}),
    "prompt_cache_retention": (REFUSED, "24h"),
    "reasoning": ({"reasoning_effort": "high"}, {"effort": "high", "summary": "auto"}),
    "safety_identifier": (OURS, "user-7"),
    "service_tier": (REFUSED, "priority"),
    "store": (OURS, False),
    "stream": ({"stream": True}, True),
    "stream_options": (REFUSED, {"include_obfuscation": True}),
    "temperature": ({"temperature": 0.5}, 0.5),
    "text": ({"response_format": CHAT_FORMAT}, {"format": FORMAT}),
    "tool_choice": ({"tool_choice": "required"}, "required"),
    "tools": ({"tools": [CHAT_TOOL]}, [FUNCTION]),
    "top_logprobs": (REFUSED, 3),
    "top_p": ({"top_p": 0.9}, 0.9),
    "truncation": (REFUSED, "auto"),
    "user": (OURS, "user-7"),
}  # fmt: skip

TOOL = {"name": "weather", "input_schema": SCHEMA}

MESSAGES: dict[str, tuple[Fate, Any]] = {
    "billing_policy": (REFUSED, {"type": "x"}),
    "cache_control": (OURS, {"type": "ephemeral", "ttl": "1h"}),
    "compaction": (REFUSED, {"type": "x"}),
    "container": (REFUSED, "c_1"),
    "context_management": (REFUSED, {"edits": [{"type": "compact_20260112"}]}),
    "diagnostics": (REFUSED, {"previous_message_id": "msg_1"}),
    "fallback_credit_token": (REFUSED, "x"),
    "fallbacks": (REFUSED, [{"model": "x"}]),
    "inference_geo": (REFUSED, "eu"),
    "max_tokens": ({"max_tokens": 9}, 9),
    "mcp_servers": (REFUSED, [{"name": "x"}]),
    "messages": ({"messages": SAID}, SAID),
    "metadata": (OURS, {"user_id": "user-7"}),
    "model": (OURS, MODEL),
    "output_config": (
        {"reasoning_effort": "max", "response_format": {"type": "json_schema", "json_schema": {
            "name": "answer", "schema": SCHEMA, "strict": True}}},
        {"effort": "max", "format": {"type": "json_schema", "schema": SCHEMA}},
    ),
    "service_tier": (OURS, "standard_only"),
    "speed": (REFUSED, "fast"),
    "stop_sequences": ({"stop": ["END"]}, ["END"]),
    "stream": ({"stream": True}, True),
    "system": ({"messages": [{"role": "system", "content": "Be brief."}, *SAID]}, "Be brief."),
    "thinking": ({"reasoning_effort": "none"}, {"type": "disabled"}),
    "thread": (REFUSED, {"type": "create"}),
    "tool_choice": ({"tool_choice": "required"}, {"type": "any"}),
    "tools": ({"tools": [CHAT_TOOL]}, [TOOL]),
    # what older releases of the SDK had
    "temperature": ({"temperature": 0.5}, 0.5),
    "top_k": ({"top_k": 40}, 40),
    "top_p": ({"top_p": 0.9}, 0.9),
}  # fmt: skip

NOT_IN_BODIES = {"betas", "user_profile_id", "workspace_id", "output_format"}
"""Parameters of the SDK's methods that it sends as headers, or turns into others."""
OLDER = {"temperature", "top_k", "top_p"}

ROUTES: dict[str, tuple[dict[str, tuple[Fate, Any]], dict[str, Any], Any]] = {
    "/responses": (RESPONSES, {"input": "Hello"}, [FUNCTION]),
    "/messages": (MESSAGES, {"messages": SAID, "max_tokens": 99}, [TOOL]),
}


def parameters(module: Any, prefix: str) -> set[str]:
    """Every parameter that the SDK can send in a body."""
    names: set[str] = set()
    for name, variant in vars(module).items():
        if isinstance(variant, type) and name.startswith(prefix):
            names |= set(get_type_hints(variant))
    return names - NOT_IN_BODIES


def test_the_tables_have_every_parameter_of_the_sdks():
    base = ("ResponseCreateParamsBase", "ResponseCreateParamsStreaming")
    known = set().union(*(parameters(response_create_params, name) for name in base))
    assert known == set(RESPONSES)
    anthropics = parameters(message_create_params, "MessageCreateParams")
    anthropics |= parameters(beta_create_params, "MessageCreateParams")
    anthropics |= parameters(message_count_tokens_params, "MessageCountTokensParams")
    assert anthropics - OLDER == set(MESSAGES) - OLDER


@pytest.mark.parametrize("path", ROUTES)
async def test_a_parameter_reaches_the_engine_or_is_refused_by_name(
    gateway: RunningGateway, engine: MockEngine, path: str
):
    table, basis, tools = ROUTES[path]
    for name, (fate, value) in table.items():
        engine.reset()
        needs = {"tools": tools} if name in ("tool_choice", "parallel_tool_calls") else {}
        if name == "stream_options":
            needs["stream"] = True
        response = await gateway.post(path, {"model": MODEL, **basis, **needs, name: value})
        if fate == REFUSED:
            assert response.status_code == 400, name
            assert name in response.text
            assert engine.requests == [], name
            continue
        assert response.status_code == 200, response.text
        sent = engine.requests[-1].json
        if isinstance(fate, dict):
            assert {field: sent[field] for field in fate} == fate
        else:
            assert sent.get(name) != value, name


@pytest.mark.parametrize("path", ROUTES)
async def test_null_is_the_same_as_nothing(gateway: RunningGateway, engine: MockEngine, path: str):
    table, basis, _ = ROUTES[path]
    for name in set(table) - {"model", *basis}:
        response = await gateway.post(path, {"model": MODEL, **basis, name: None})
        assert response.status_code == 200, (name, response.text)
        assert engine.requests[-1].json == engine.requests[0].json, name


@pytest.mark.parametrize("path", ROUTES)
async def test_a_field_that_no_sdk_knows_is_refused_with_the_nearest_name(
    gateway: RunningGateway, path: str
):
    _, basis, _ = ROUTES[path]
    response = await gateway.post(path, {"model": MODEL, **basis, "temprature": 1})
    assert response.status_code == 400
    assert "temperature" in response.json()["error"]["message"]


async def test_what_an_engine_does_not_honour_is_refused_under_the_clients_name(
    start_gateway: Any, engine: MockEngine
):
    gateway = await start_gateway(engine, kinds=["llama.cpp"])
    for path, field, value in (
        ("/responses", "reasoning", {"effort": "high"}),
        ("/messages", "thinking", {"type": "disabled"}),
        ("/responses", "tools", [FUNCTION]),
        ("/messages", "tools", [TOOL]),
    ):
        _, basis, _ = ROUTES[path]
        response = await gateway.post(path, {"model": MODEL, **basis, field: value})
        assert response.status_code == 400
        assert f"'{field}" in response.json()["error"]["message"]
