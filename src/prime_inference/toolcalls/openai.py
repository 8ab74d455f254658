"""A parsed answer as chat completions has it: tool calls, finish reason, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from prime_inference.toolcalls.events import Message
from prime_inference.toolcalls.tools import ToolChoice

Json: TypeAlias = dict[str, Any]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


def finish_reason(calls: int, choice: ToolChoice, engine: FinishReason = "stop") -> FinishReason:
    """Why the answer ended, given how many calls it has and what the engine said.

    As OpenAI does it: `tool_calls` where the model chose to call, or had to call some tool;
    `stop` where the caller named the function; never `tool_calls` without a call.
    """
    if engine in ("length", "content_filter"):
        return engine
    return "tool_calls" if calls and not choice.single else "stop"


def tool_calls(message: Message, new_id: Callable[[int], str]) -> list[Json]:
    """The calls of a message; `new_id` names those of formats without ids, by index."""
    return [
        {
            "id": call.id or new_id(call.index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in message.calls
    ]


def problems(message: Message) -> list[Json]:
    """What is wrong with the calls, each with the index of its call."""
    return [
        {
            "call": call.index,
            "bucket": problem.bucket.value,
            "message": problem.message,
            "path": problem.path,
        }
        for call in message.calls
        for problem in call.problems
    ]
