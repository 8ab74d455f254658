"""Anthropic's own Python SDK, pointed at the gateway and otherwise unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from prime_inference.engines.mock import expected_text, expected_usage
from tests.gateway.processes import Processes
from tests.gateway.running import MODEL

MESSAGES: Any = [{"role": "user", "content": "Tell me about a river"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"name": "weather", "description": "The weather in a city", "input_schema": SCHEMA}]


class City(BaseModel):
    name: str
    people: int


@pytest.fixture
def client(processes: Processes) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=processes.base_url.removesuffix("/v1"),
        api_key=processes.key,
        max_retries=0,
        timeout=10,
    ) as client:
        yield client


def ask(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    asked: Any = {"model": MODEL, "max_tokens": 99, "messages": MESSAGES, **fields}
    message: anthropic.types.Message = client.messages.create(**asked)
    return message


def test_a_plain_answer(client: anthropic.Anthropic):
    message = ask(client)
    assert message.id.startswith("msg_")
    assert message.model == MODEL
    (block,) = message.content
    assert block.type == "text"
    assert block.text == expected_text(MESSAGES)
    assert message.stop_reason == "end_turn"
    assert (message.usage.input_tokens, message.usage.output_tokens) == expected_usage(MESSAGES)


def test_the_limit_stops_a_message(client: anthropic.Anthropic):
    message = ask(client, max_tokens=9)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 9


def test_system_and_sampling_reach_the_engine(client: anthropic.Anthropic, processes: Processes):
    ask(
        client,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        extra_body={"temperature": 0.5, "top_p": 0.9, "top_k": 40},  # the SDK has them no more
        stop_sequences=["END"],
        metadata={"user_id": "somebody"},
    )
    body = processes.requests()[-1]["body"]
    assert body["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        *MESSAGES,
    ]
    sent = {name: body[name] for name in ("temperature", "top_p", "top_k", "stop", "max_tokens")}
    assert sent == {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "stop": ["END"], "max_tokens": 99,
    }  # fmt: skip
    assert "somebody" not in str(body)


def test_a_stream_adds_up_to_the_whole_message(client: anthropic.Anthropic):
    with client.messages.stream(model=MODEL, max_tokens=99, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert text == expected_text(MESSAGES)
    whole = ask(client)
    assert message.content[0].to_dict() == whole.content[0].to_dict()
    assert message.stop_reason == whole.stop_reason
    assert message.usage.input_tokens == whole.usage.input_tokens
    assert message.usage.output_tokens == whole.usage.output_tokens


async def test_the_asynchronous_client(processes: Processes):
    async with (
        anthropic.AsyncAnthropic(
            base_url=processes.base_url.removesuffix("/v1"), api_key=processes.key, timeout=10
        ) as client,
        client.messages.stream(model=MODEL, max_tokens=99, messages=MESSAGES) as stream,
    ):
        assert await stream.get_final_text() == expected_text(MESSAGES)


def test_the_request_id_is_where_the_sdk_looks_for_it(client: anthropic.Anthropic):
    raw = client.messages.with_raw_response.create(model=MODEL, max_tokens=9, messages=MESSAGES)
    message = raw.parse()
    assert message._request_id == raw.headers["x-request-id"]
    assert message.id == raw.headers["x-generation-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_used_and_its_result_comes_back(
    client: anthropic.Anthropic, processes: Processes, stream: bool
):
    asked: Any = {
        "model": MODEL, "max_tokens": 99, "messages": MESSAGES, "tools": TOOLS,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    }  # fmt: skip
    if stream:
        with client.messages.stream(**asked) as events:
            first: Any = events.get_final_message()
    else:
        first = client.messages.create(**asked)
    (use,) = first.content
    assert first.stop_reason == "tool_use"
    assert (use.type, use.name, list(use.input)) == ("tool_use", "weather", ["city"])
    body = processes.requests()[-1]["body"]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("required", False)
    assert body["tools"][0]["function"]["parameters"] == SCHEMA
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "no such city"}
    text = {"type": "text", "text": "Well?"}
    turns = [
        *MESSAGES,
        first.to_param(),
        {"role": "user", "content": [{**result, "is_error": True}, text]},
    ]
    ask(client, messages=turns, tools=TOOLS)
    *_, turn, told, said = processes.requests()[-1]["body"]["messages"]
    (call,) = turn["tool_calls"]
    assert (call["id"], call["function"]["name"]) == (use.id, "weather")
    assert told == {
        "role": "tool", "tool_call_id": use.id, "content": "[tool error]\nno such city",
    }  # fmt: skip
    assert said == {"role": "user", "content": [text]}


def test_a_tool_by_its_name_and_none_at_all(client: anthropic.Anthropic, processes: Processes):
    ask(client, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"})
    choice = processes.requests()[-1]["body"]["tool_choice"]
    assert choice == {"type": "function", "function": {"name": "weather"}}
    message = ask(client, tools=TOOLS, tool_choice={"type": "none"})
    assert message.stop_reason == "end_turn"


def test_parse_gives_an_object_of_the_class(client: anthropic.Anthropic, processes: Processes):
    message = client.messages.parse(
        model=MODEL, max_tokens=99, messages=MESSAGES, output_format=City
    )
    assert isinstance(message.parsed_output, City)
    assert processes.requests()[-1]["body"]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "low"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "high"),
        ({"thinking": {"type": "adaptive"}}, None),
    ],
)
def test_thinking_becomes_an_effort(
    client: anthropic.Anthropic, processes: Processes, fields: dict[str, Any], effort: str | None
):
    ask(client, **{"max_tokens": 3000, **fields})
    assert processes.requests()[-1]["body"].get("reasoning_effort") == effort


def test_tokens_are_counted_as_they_are_billed(client: anthropic.Anthropic):
    asked: Any = {
        "model": MODEL,
        "system": "Be brief.",
        "tools": TOOLS,
        "messages": [
            *MESSAGES,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "text", "text": "It is long."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Ulm"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
        ],
    }  # fmt: skip
    counted = client.messages.count_tokens(**asked)
    assert counted.input_tokens == ask(client, **asked).usage.input_tokens


def test_the_key_may_come_as_x_api_key(processes: Processes):
    body = {"model": MODEL, "max_tokens": 9, "messages": MESSAGES}
    url = f"{processes.base_url}/messages"
    answer = httpx.post(url, json=body, headers={"x-api-key": processes.key})
    assert answer.status_code == 200
    both = {"x-api-key": processes.key, "authorization": "Bearer wrong"}
    assert httpx.post(url, json=body, headers=both).status_code == 401


# -- errors


def test_errors_are_the_sdks_own_classes(client: anthropic.Anthropic):
    with pytest.raises(anthropic.AuthenticationError) as caught:
        ask(client.with_options(api_key="wrong"))
    assert caught.value.type == "authentication_error"
    with pytest.raises(anthropic.NotFoundError, match="does not exist") as missing:
        ask(client, model="acme/nothing")
    assert missing.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="'temperature'"):
        ask(client, extra_body={"temperature": 1.5})


@pytest.mark.parametrize(
    ("behaviour", "kind", "status"),
    [
        ("error-after-0", "api_error", 502),
        ("context-length", "invalid_request_error", 400),
    ],
)
def test_failures_of_the_engine_have_anthropics_types(
    client: anthropic.Anthropic, processes: Processes, behaviour: str, kind: str, status: int
):
    processes.behave(behaviour)
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client)
    assert (caught.value.type, caught.value.status_code) == (kind, status)


def test_a_failure_in_mid_stream_raises_after_what_was_said(
    client: anthropic.Anthropic, processes: Processes
):
    processes.behave("cut-after-5")
    said: list[str] = []
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model=MODEL, max_tokens=99, messages=MESSAGES) as stream,
    ):
        said.extend(stream.text_stream)
    assert "".join(said) == expected_text(MESSAGES, 5)
    assert caught.value.type == "api_error"


def test_what_is_not_supported_is_refused_by_its_name(client: anthropic.Anthropic):
    image = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    refused: dict[str, Any] = {
        "tools[0].type": {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        "last message": {"messages": [*MESSAGES, {"role": "assistant", "content": "It"}]},
        "container": {"container": "c"},
        "thinking.display": {"thinking": {"type": "adaptive", "display": "omitted"}},
        "messages": {"messages": [
            {"role": "user", "content": [{"type": "image", "source": image}]}]},
        "messages[0].content[1]": {"messages": [{"role": "user", "content": [
            {"type": "text", "text": "so"},
            {"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]},
        "thinking.budget_tokens": {"thinking": {"type": "enabled", "budget_tokens": 99}},
        "max_tokens": {"max_tokens": 10**6},
        "tools[0].input_schema": {"tools": [{"name": "f", "input_schema": [1]}]},
    }  # fmt: skip
    for name, fields in refused.items():
        with pytest.raises(anthropic.BadRequestError) as caught:
            ask(client, **fields)
        assert name in caught.value.message
