"""A whole answer, rebuilt under our id and model name."""

from __future__ import annotations

import msgspec

from prime_inference.domain.errors import UpstreamCut, UpstreamFailure, UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import Choice, Message, decode_answer, usage_object
from prime_inference.wire.openai.stream import BROKEN_FINISHES, Shape

OBJECTS: dict[Shape, str] = {"chat": "chat.completion", "text": "text_completion"}

_encoder = msgspec.json.Encoder()


def rebuild_answer(
    shape: Shape, data: bytes, *, answer_id: str, created: int, model: str, choices: int
) -> tuple[bytes, Usage]:
    """The client's body and its usage. Raises UpstreamFailure for anything but a whole answer."""
    answer = decode_answer(data)
    if answer.failed:
        raise UpstreamFailure("The model's engine reported an error.")
    if len(answer.choices) != choices:
        raise UpstreamMalformed("The upstream gave another number of choices than asked for.")
    rebuild = _text_choice if shape == "text" else _chat_choice
    body: dict[str, object] = {
        "id": answer_id,
        "object": OBJECTS[shape],
        "created": created,
        "model": model,
        "choices": [rebuild(choice) for choice in answer.choices],
    }
    usage = Usage()
    if answer.usage is not None:
        usage = answer.usage.to_usage()
        body["usage"] = usage_object(usage)
    return _encoder.encode(body), usage


def _chat_choice(choice: Choice) -> dict[str, object]:
    if choice.message is None:
        raise UpstreamMalformed("The upstream gave a choice without a message.")
    message = _message(choice.message)
    finish = _finish(choice)
    if finish == "stop" and "tool_calls" in message:
        finish = "tool_calls"
    return {
        "index": choice.index,
        "message": message,
        "logprobs": choice.logprobs,
        "finish_reason": finish,
    }


def _text_choice(choice: Choice) -> dict[str, object]:
    if choice.text is None:
        raise UpstreamMalformed("The upstream gave a choice without text.")
    return {
        "index": choice.index,
        "text": choice.text,
        "logprobs": choice.logprobs,
        "finish_reason": _finish(choice),
    }


def _message(message: Message) -> dict[str, object]:
    body: dict[str, object] = {
        "role": "assistant",
        "content": message.content,
        "refusal": message.refusal,
    }
    if reasoning := message.reasoning_content or message.reasoning:
        body["reasoning_content"] = reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": call.function}
            for call in message.tool_calls
        ]
    return body


def _finish(choice: Choice) -> str:
    if not choice.finish_reason or choice.finish_reason in BROKEN_FINISHES:
        raise UpstreamCut("The model's answer ended early.")
    return choice.finish_reason
