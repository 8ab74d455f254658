"""Finish reasons and tool calls in OpenAI's shape."""

from __future__ import annotations

import pytest

from prime_inference.toolcalls.events import CallEnded, Message
from prime_inference.toolcalls.openai import finish_reason, problems, tool_calls
from prime_inference.toolcalls.tools import AUTO, ToolChoice
from prime_inference.toolcalls.validate import Bucket, Problem

REQUIRED = ToolChoice("required")
NAMED = ToolChoice("required", ("f",), single=True)


@pytest.mark.parametrize(
    ("calls", "choice", "engine", "reason"),
    [
        (1, REQUIRED, "stop", "tool_calls"),  # vllm-project/vllm#25054
        (1, NAMED, "stop", "stop"),
        (1, AUTO, "stop", "tool_calls"),
        (2, ToolChoice("auto", ("f",)), "stop", "tool_calls"),
        (0, REQUIRED, "stop", "stop"),  # vllm-project/vllm#53255
        (0, REQUIRED, "tool_calls", "stop"),
        (0, AUTO, "stop", "stop"),
        (0, NAMED, "stop", "stop"),
        (1, AUTO, "length", "length"),
        (0, REQUIRED, "length", "length"),
        (0, AUTO, "content_filter", "content_filter"),
    ],
)
def test_the_finish_reason_is_openais(calls, choice, engine, reason):
    assert finish_reason(calls, choice, engine) == reason


def message(*calls: CallEnded) -> Message:
    return Message(content=None, reasoning=None, calls=calls)


def test_calls_have_ids_of_their_own_or_new_ones():
    calls = (
        CallEnded(0, "f", "{}", "functions.f:0", ()),
        CallEnded(1, "g", '{"a": 1}', None, ()),
    )
    assert tool_calls(message(*calls), lambda index: f"call_{index}") == [
        {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": '{"a": 1}'}},
    ]


def test_problems_name_their_call():
    wrong = (Problem(Bucket.SCHEMA_MISMATCH, "no", "/a"),)
    calls = (CallEnded(0, "f", "{}", None, ()), CallEnded(1, "f", "{}", None, wrong))
    assert problems(message(*calls)) == [
        {"call": 1, "bucket": "SchemaMismatch", "message": "no", "path": "/a"}
    ]
