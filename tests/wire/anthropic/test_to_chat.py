"""Blocks and parameters of a Messages request as a chat request."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from prime_inference.domain.errors import InvalidRequest
from prime_inference.wire.anthropic.request import decode_messages_request, decode_tools
from prime_inference.wire.anthropic.stream import MessageStream
from prime_inference.wire.anthropic.to_chat import to_chat
from tests.wire.chat_streams import Streamed, answers, patient, whole


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    """The chat request, as it is written."""
    body = {"model": "a/b", "max_tokens": 40_000, "messages": messages, **fields}
    request = decode_messages_request(json.dumps(body).encode())
    made = to_chat(request, decode_tools(request.tools or []))
    written: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return written


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


CACHE = {"cache_control": {"type": "ephemeral"}}
HELLO = {"role": "user", "content": "Hello"}


def test_results_are_messages_before_what_the_user_says_besides():
    turns = [
        HELLO,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            text("I look."),
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "&lt;"}, **CACHE},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}},
        ]},
        user(
            {"type": "tool_result", "tool_use_id": "a", "content": [text("one", **CACHE)]},
            {"type": "tool_result", "tool_use_id": "b"},
            text("And now?"),
        ),
    ]  # fmt: skip
    assert chat(*turns)["messages"][1:] == [
        {
            "role": "assistant", "content": "I look.", "reasoning_content": "hm",
            "tool_calls": [
                {"id": "a", "type": "function",
                 "function": {"name": "f", "arguments": '{"x": "&lt;"}'}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "one"}]},
        {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("no file", "[tool error]\nno file"),
        (None, "[tool error]\n"),
        ([text("no file")], [text("[tool error]\n"), text("no file")]),
    ],
)
def test_a_tool_that_failed_says_so(content: Any, told: Any):
    result = {"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": True}
    assert chat(user(result))["messages"][0]["content"] == told


def test_images_are_data_urls():
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    (message,) = chat(user({"type": "image", "source": source}))["messages"]
    (part,) = message["content"]
    assert part["image_url"] == {"url": "data:image/png;base64,AAAA"}


def test_instructions_in_the_midst_stay_where_they_are():
    turns = [HELLO, {"role": "system", "content": "Be brief."}, HELLO]
    assert [m["role"] for m in chat(*turns)["messages"]] == ["user", "system", "user"]


@pytest.mark.parametrize(
    ("budget", "effort"), [(1024, "low"), (4095, "low"), (4096, "medium"), (16_384, "high")]
)
def test_a_budget_becomes_an_effort(budget: int, effort: str):
    thinking = {"type": "enabled", "budget_tokens": budget}
    assert chat(HELLO, thinking=thinking)["reasoning_effort"] == effort


def test_an_effort_wins_over_a_budget():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    made = chat(HELLO, thinking=thinking, output_config={"effort": "max"})
    assert made["reasoning_effort"] == "max"


@pytest.mark.parametrize("keep", ["all", {"type": "all"}])
def test_an_edit_that_keeps_everything_changes_nothing(keep: Any):
    edits = [{"type": "clear_thinking_20251015", "keep": keep}]
    assert chat(HELLO, context_management={"edits": edits}) == chat(HELLO)


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "adaptive", "budget_tokens": 2048}},
        {"thinking": {"type": "enabled", "budget_tokens": 40_000}},
        {"tool_choice": {"type": "tool"}},
        {"messages": []},
        {"max_tokens": 0},
        {"messages": [HELLO, {"role": "assistant", "content": "It"}]},
        {"messages": [user({"type": "redacted_thinking", "data": "x"})]},
        {"messages": [user({"type": "document", "source": {}})]},
        {"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "f", "input": [1]}]}, HELLO]},
        {"messages": [user({"type": "tool_result", "tool_use_id": "a", "content": [
            {"type": "image", "source": {"type": "url", "url": "x"}}]})]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}},
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any]):
    messages = fields.pop("messages", [HELLO])
    with pytest.raises(InvalidRequest) as caught:
        chat(*messages, **fields)
    assert caught.value.param


@patient
@given(answers(in_order=True))
def test_what_is_handed_back_is_the_message_that_the_model_gave(answer: Streamed):
    if answer.finish == "length":
        return  # a call that was cut has no input to hand back
    message = whole(answer, MessageStream(request_id="7", model="a/b"))
    content = message["content"]
    sent, _ = chat({"role": "assistant", "content": content}, HELLO)["messages"]
    assert (sent.get("content") or "") == answer.said("content") + answer.said("refusal")
    assert sent.get("reasoning_content", "") == answer.said("reasoning_content")
    assert [
        (each["id"], each["function"]["name"], json.loads(each["function"]["arguments"]))
        for each in sent.get("tool_calls", ())
    ] == [(one, two, json.loads(three)) for one, two, three in answer.calls()]
