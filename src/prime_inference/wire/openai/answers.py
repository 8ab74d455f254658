"""Answers as upstreams give them: what is known is typed and bounded, the rest is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.domain.usage import NO_USAGE, Usage
from prime_inference.wire.openai.estimate import estimated_tokens

Count = Annotated[int, Meta(ge=0)]
MOST_TOKENS = 2**27  # 13 times the longest context there is, 10 M: an engine that says more errs
NULL = Raw(b"null")  # of a union with `Raw`, msgspec decodes only the other members


class PromptDetails(Struct, omit_defaults=True):
    cached_tokens: Count | None = None


class CompletionDetails(Struct, omit_defaults=True):
    reasoning_tokens: Count | None = None


class UpstreamUsage(Struct):
    """Token counts on the wire; null details are as good as none."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    total_tokens: Count = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    cost: object = None  # dollars, where it was our gateway that wrote it; else not looked at

    def to_usage(self) -> Usage:
        """What is billed; nothing if a count cannot be, so that it is counted by our own rule."""
        if max(self.prompt_tokens, self.completion_tokens) > MOST_TOKENS:
            return NO_USAGE
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=(prompt and prompt.cached_tokens) or 0,
            reasoning_tokens=(completion and completion.reasoning_tokens) or 0,
            source="upstream",
        )


class FunctionDelta(Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(Struct, omit_defaults=True):
    """A tool call, or a piece of one in a stream."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class Message(Struct, omit_defaults=True):
    """A message, or a delta of one in a stream."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCallDelta] | None = None

    @property
    def has_content(self) -> bool:
        """Whether it carries anything that the model generated."""
        return bool(
            self.content
            or self.reasoning_content
            or self.reasoning
            or self.refusal
            or self.tool_calls
        )


class Timings(Struct):
    """llama.cpp's counts, on every chunk when `timings_per_token` is asked for."""

    prompt_n: Count = 0  # evaluated now
    predicted_n: Count = 0
    cache_n: Count = 0  # found in the KV cache


class Choice(Struct):
    index: Count = 0
    delta: Message | None = None
    message: Message | None = None
    text: str | None = None
    logprobs: Raw = NULL
    finish_reason: str | None = None
    stop_reason: object = UNSET  # vLLM's: the stop string that was met; null for none
    token_ids: list[int] | None = None  # vLLM's, for `return_token_ids`
    prompt_token_ids: Raw = NULL  # where completions have it


class Answer(Struct):
    """A whole answer or one event of a stream, of chat completions or completions."""

    choices: list[Choice] = []
    usage: UpstreamUsage | None = None
    timings: Timings | None = None
    error: Raw = NULL
    prompt_token_ids: Raw = NULL  # vLLM's, on a chat's first event

    @property
    def failed(self) -> bool:
        """Whether it is an error instead of an answer."""
        return bytes(self.error) != b"null"


_answers = msgspec.json.Decoder(Answer)
_loose = msgspec.json.Decoder(float_hook=Decimal)  # keeps every digit
_exact = msgspec.json.Encoder(decimal_format="number")


def decode_answer(data: bytes) -> Answer:
    """Raises UpstreamMalformed."""
    try:
        return _answers.decode(data)
    except msgspec.ValidationError:
        return _decode_loosely(data)
    except (ValueError, RecursionError):
        raise _malformed() from None


def _decode_loosely(data: bytes) -> Answer:
    """Some upstreams give arguments as the object that their JSON text should say."""
    try:
        answer = _loose.decode(data)
        for function in _functions(answer):
            if isinstance(function.get("arguments"), dict | list):
                function["arguments"] = _exact.encode(function["arguments"]).decode()
        return _answers.decode(_exact.encode(answer))
    except (ValueError, RecursionError):
        raise _malformed() from None


def _functions(answer: object) -> Iterator[dict[str, Any]]:
    """The `function` of each call in an answer of any shape."""
    for choice in _objects(answer, "choices"):
        for key in ("delta", "message"):
            message = choice.get(key)
            for call in _objects(message, "tool_calls"):
                if isinstance(call.get("function"), dict):
                    yield call["function"]


def _objects(parent: object, key: str) -> Iterator[dict[str, Any]]:
    found = parent.get(key) if isinstance(parent, dict) else None
    return (one for one in found if isinstance(one, dict)) if isinstance(found, list) else iter(())


def _malformed() -> UpstreamMalformed:
    return UpstreamMalformed("The upstream's answer is not what its API promises.")


def whole_usage(answer: Answer) -> Usage:
    """What a whole answer has used; estimated where its engine reports no completion."""
    reported = answer_usage(answer)
    if reported.completion_tokens:
        return reported
    said = estimated_tokens(
        [{"text": choice.text, "message": choice.message} for choice in answer.choices]
    )
    if not said:
        return reported
    return Usage(reported.prompt_tokens, said, source="counted")


def answer_usage(answer: Answer) -> Usage:
    """The token counts that an answer carries."""
    return answer.usage.to_usage() if answer.usage is not None else NO_USAGE


def usage_object(usage: Usage, cost: float | None = None) -> dict[str, object]:
    """Token counts as OpenAI writes them, and the cost in dollars as OpenRouter does."""
    counts: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
    return counts | cost_of(cost)


def cost_of(cost: object) -> dict[str, object]:
    """The member of a usage object that tells a cost in dollars; none without one."""
    return {"cost": cost} if isinstance(cost, int | float) else {}
