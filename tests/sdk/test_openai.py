"""OpenAI's own Python SDK, pointed at the gateway and otherwise unchanged."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from pydantic import BaseModel

from prime_inference.engines.mock import expected_text, expected_usage
from tests.gateway.processes import Processes
from tests.gateway.running import MODEL

MESSAGES: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tell me about a river"},
]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


class City(BaseModel):
    name: str
    people: int


def test_a_plain_answer(client: openai.OpenAI):
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=9)
    (choice,) = answer.choices
    assert answer.object == "chat.completion"
    assert answer.model == MODEL
    assert choice.message.role == "assistant"
    assert choice.message.content == expected_text(MESSAGES, 9)
    assert choice.finish_reason == "length"
    prompt, completion = expected_usage(MESSAGES, 9)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == prompt
    assert answer.usage.completion_tokens == completion
    assert answer.usage.total_tokens == prompt + completion
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_stream(client: openai.OpenAI):
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected_text(MESSAGES)
    assert [c.choices[0].finish_reason for c in chunks] == [None] * 64 + ["stop"]
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert all(c.usage is None for c in chunks)


def test_the_flex_tier_is_told_whole_and_in_every_chunk(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=9, service_tier="flex"
    )
    assert answer.service_tier == "flex"
    assert answer.choices[0].message.content == expected_text(MESSAGES, 9)
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=9, service_tier="flex", stream=True
    )
    assert {chunk.service_tier for chunk in stream} == {"flex"}


def test_usage_of_a_stream_by_stream_options(client: openai.OpenAI):
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == sum(expected_usage(MESSAGES))


def test_the_sdks_own_accumulation_of_a_stream(client: openai.OpenAI):
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert answer.choices[0].message.content == expected_text(MESSAGES)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 64


def test_the_raw_response_has_our_ids(client: openai.OpenAI):
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=MESSAGES)
    answer = raw.parse()
    assert raw.http_response.status_code == 200
    assert answer.id == raw.headers["x-generation-id"]
    assert answer._request_id == raw.headers["x-request-id"]
    assert answer.id.startswith("chatcmpl-")


def test_the_raw_response_of_a_stream(client: openai.OpenAI):
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=MESSAGES, stream=True
    ) as raw:
        assert raw.headers["content-type"].startswith("text/event-stream")
        lines = list(raw.iter_lines())
    assert lines[-2] == "data: [DONE]"


def test_a_json_schema_as_response_format(client: openai.OpenAI, processes: Processes):
    schema: Any = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    )
    sent = processes.requests()[-1]["body"]["response_format"]
    assert sent["json_schema"] == {"name": "answer", "schema": schema, "strict": True}


def test_parse_gives_an_object_of_the_class(client: openai.OpenAI):
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_parse_of_a_stream_gives_an_object_of_the_class(client: openai.OpenAI):
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=City
    ) as stream:
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, City)


def test_tools_are_passed_through_and_their_calls_come_back(
    client: openai.OpenAI, processes: Processes
):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required"
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageFunctionToolCall)
    assert call.function.name == "weather"
    assert processes.requests()[-1]["body"]["tools"] == TOOLS
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns: Any = [*MESSAGES, choice.message, result]
    again = client.chat.completions.create(model=MODEL, messages=turns, tools=TOOLS)
    assert again.choices[0].finish_reason == "stop"


def named(*names: str) -> Any:
    return [{"type": "function", "function": {"name": name}} for name in names]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones_that_can_be_called(
    client: openai.OpenAI, processes: Processes, mode: Any
):
    other: Any = {**TOOLS[0], "function": {**TOOLS[0]["function"], "name": "time"}}
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named("time")}}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[*TOOLS, other], tool_choice=choice
    )
    body = processes.requests()[-1]["body"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["time"]
    assert body["tool_choice"] == mode
    assert answer.choices[0].finish_reason == ("tool_calls" if mode == "required" else "stop")


@pytest.mark.parametrize(
    ("allowed", "param"),
    [
        ({"mode": "auto", "tools": named("wether")},
         "tool_choice.allowed_tools.tools[0].function.name"),
        ({"mode": "auto", "tools": named("weather", "x")},
         "tool_choice.allowed_tools.tools[1].function.name"),
        ({"mode": "auto", "tools": []}, "tool_choice.allowed_tools.tools"),
        ({"mode": "none", "tools": named("weather")}, "tool_choice.allowed_tools.mode"),
        ({"tools": named("weather")}, "tool_choice.allowed_tools.mode"),
        ({"mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
         "tool_choice.allowed_tools.tools[0].type"),
    ],
)  # fmt: skip
def test_allowed_tools_that_are_none_are_refused_by_their_place(
    client: openai.OpenAI, allowed: Any, param: str
):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS,
            tool_choice={"type": "allowed_tools", "allowed_tools": allowed},
        )  # fmt: skip
    assert caught.value.param == param
    if "wether" in str(allowed):
        assert "Did you mean weather?" in caught.value.message


def test_tool_calls_of_a_stream_are_put_together(client: openai.OpenAI, processes: Processes):
    processes.behave("calls-3")
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as stream:
        answer = stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["weather"] * 3
    assert all(call.function.arguments.startswith('{"city"') for call in calls)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_logprobs(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(token.token for token in logprobs.content) == expected_text(MESSAGES, 4)
    assert {len(token.top_logprobs) for token in logprobs.content} == {3}


def test_stop_seed_and_n(client: openai.OpenAI, processes: Processes):
    whole = expected_text(MESSAGES)
    word = whole.split(" ")[10]
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, stop=[word], seed=7)
    assert answer.choices[0].message.content == whole[: whole.index(word)]
    assert answer.choices[0].finish_reason == "stop"
    assert processes.requests()[-1]["body"]["seed"] == 7
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_completions(client: openai.OpenAI):
    answer = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=6, logprobs=1)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == expected_text("Once upon", 6)
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens is not None
    assert len(answer.choices[0].logprobs.tokens) == 6
    chunks = client.completions.create(model=MODEL, prompt="Once upon", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected_text("Once upon")


def test_embeddings_in_the_sdks_own_encoding(client: openai.OpenAI, processes: Processes):
    encoded = client.embeddings.create(model=MODEL, input=["a river", "a lake"])
    assert processes.requests()[-1]["body"]["encoding_format"] == "base64"
    plain = client.embeddings.create(
        model=MODEL, input=["a river", "a lake"], encoding_format="float"
    )
    for one, other in zip(encoded.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert math.isclose(sum(x * x for x in one.embedding), 1, abs_tol=1e-5)
    assert encoded.usage.prompt_tokens > 0
    small = client.embeddings.create(model=MODEL, input="a river", dimensions=4)
    assert len(small.data[0].embedding) == 4


def test_models(client: openai.OpenAI):
    (model,) = client.models.list()
    assert model.id == MODEL
    assert model.object == "model"
    assert model.owned_by == "acme"
    assert client.models.retrieve(MODEL).id == MODEL


# -- errors


def test_a_wrong_key_is_an_authentication_error(client: openai.OpenAI):
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="sk-wrong").chat.completions.create(
            model=MODEL, messages=MESSAGES
        )
    assert caught.value.code == "invalid_api_key"
    assert caught.value.type == "authentication_error"


def test_an_unknown_model_is_a_not_found_error_with_the_nearest_name(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError, match=f"Did you mean {MODEL}") as caught:
        client.chat.completions.create(model="acme/eco-1", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("acme/nothing")


def test_a_bad_request_names_the_field(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError, match="guided_json"):
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body={"guided_json": {}}
        )


def test_too_long_a_prompt_is_a_bad_request_in_the_usual_words(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="maximum context length is") as caught:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 5000}]
        )
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        ("status-500", 502, "upstream_failed"),
        ("status-503.retry-after-30", 503, "capacity_exhausted"),
        ("status-429.retry-after-30", 503, "capacity_exhausted"),
        ("reset", 502, "upstream_unreachable"),
    ],
)
def test_a_failure_of_the_engine_is_an_internal_server_error(
    client: openai.OpenAI, processes: Processes, behaviour: str, status: int, code: str
):
    processes.behave(behaviour)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
        assert (caught.value.status_code, caught.value.code) == (status, code)
        if "retry-after" in behaviour:
            assert caught.value.response.headers["retry-after"] == "30"


def test_a_failure_in_mid_stream_raises_an_error_after_what_was_said(
    client: openai.OpenAI, processes: Processes
):
    processes.behave("cut-after-5")
    said: list[str] = []
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError) as caught:
        said.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "".join(said) == expected_text(MESSAGES, 5)
    assert not isinstance(caught.value, openai.APIStatusError)  # the status was 200
    assert caught.value.code == "upstream_cut"
    assert caught.value.type == "upstream_error"


def test_the_sdks_retries_outlast_a_passing_fault(client: openai.OpenAI, processes: Processes):
    processes.behave("status-503.retry-after-0.first-2")
    answer = client.with_options(max_retries=3).chat.completions.create(
        model=MODEL, messages=MESSAGES
    )
    assert answer.choices[0].message.content == expected_text(MESSAGES)
    assert [seen["status"] for seen in processes.requests()].count(503) == 2


def test_a_timeout_of_the_clients_is_a_timeout_error(client: openai.OpenAI, processes: Processes):
    processes.behave("silence")
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.2).chat.completions.create(model=MODEL, messages=MESSAGES)


def test_nobody_at_the_address_is_a_connection_error(client: openai.OpenAI):
    away = client.with_options(base_url="http://127.0.0.1:1/api/v1")
    with pytest.raises(openai.APIConnectionError):
        away.chat.completions.create(model=MODEL, messages=MESSAGES)
