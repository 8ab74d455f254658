"""A whole answer, rebuilt under our id and model name."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from prime_inference.domain.errors import UpstreamCut, UpstreamFailure, UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import (
    Answer,
    Choice,
    FunctionDelta,
    Message,
    usage_object,
)
from prime_inference.wire.openai.stream import BROKEN_FINISHES, Charge, Shape

OBJECTS: dict[Shape, str] = {"chat": "chat.completion", "text": "text_completion"}


class _Call(Struct):
    id: str | None
    function: FunctionDelta | None
    type: str = "function"


class _Message(Struct):
    content: str | None
    refusal: str | None
    role: str = "assistant"
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class _ChatChoice(Struct):
    index: int
    message: _Message
    logprobs: Raw
    finish_reason: str


class _TextChoice(Struct):
    index: int
    text: str
    logprobs: Raw
    finish_reason: str


class _Body(Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[_ChatChoice] | list[_TextChoice]
    usage: dict[str, Any] | UnsetType
    service_tier: str | UnsetType


_encoder = msgspec.json.Encoder()


def rebuild_answer(
    shape: Shape,
    answer: Answer,
    usage: Usage,
    *,
    answer_id: str,
    created: int,
    model: str,
    choices: int,
    service_tier: str = "",
    charge: Charge | None = None,
) -> bytes:
    """The client's body, with `service_tier` unless it is empty.

    Raises UpstreamFailure for anything but a whole answer.
    """
    if answer.failed:
        raise UpstreamFailure("The model's engine reported an error.")
    if len(answer.choices) != choices:
        raise UpstreamMalformed("The upstream gave another number of choices than asked for.")
    rebuilt = (
        [_text_choice(choice) for choice in answer.choices]
        if shape == "text"
        else [_chat_choice(choice) for choice in answer.choices]
    )
    cost = None if charge is None else charge(usage)
    counts = usage_object(usage, cost) if usage.source == "upstream" else UNSET
    tier = service_tier or UNSET
    body = _Body(answer_id, OBJECTS[shape], created, model, rebuilt, counts, tier)
    return _encoder.encode(body)


def _chat_choice(choice: Choice) -> _ChatChoice:
    if choice.message is None:
        raise UpstreamMalformed("The upstream gave a choice without a message.")
    return _ChatChoice(choice.index, _message(choice.message), choice.logprobs, _finish(choice))


def _text_choice(choice: Choice) -> _TextChoice:
    if choice.text is None:
        raise UpstreamMalformed("The upstream gave a choice without text.")
    return _TextChoice(choice.index, choice.text, choice.logprobs, _finish(choice))


def _message(message: Message) -> _Message:
    content = message.content
    if content is None and not message.tool_calls and not message.refusal:
        content = ""  # clients take null for a call or a refusal
    rebuilt = _Message(content, message.refusal)
    if reasoning := message.reasoning_content or message.reasoning:
        rebuilt.reasoning_content = reasoning
    if message.tool_calls:
        rebuilt.tool_calls = [_Call(call.id, call.function) for call in message.tool_calls]
    return rebuilt


def _finish(choice: Choice) -> str:
    if not choice.finish_reason or choice.finish_reason in BROKEN_FINISHES:
        raise UpstreamCut("The model's answer ended early.")
    return choice.finish_reason
