"""What a server of OpenAI's chat API sends, as far as this client reads it.

Unknown fields are ignored and absent ones have defaults: the server may be any version of
any product. A field of another type than the API's is an error (`AnswerMalformed`).
"""

from __future__ import annotations

from typing import Any

import msgspec


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens that a request used."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return (details.cached_tokens if details else None) or 0

    @property
    def reasoning_tokens(self) -> int:
        details = self.completion_tokens_details
        return (details.reasoning_tokens if details else None) or 0


class Message(msgspec.Struct):
    """A whole assistant message."""

    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class Choice(msgspec.Struct):
    message: Message
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    """A whole answer; `error` instead of choices is an error under status 200."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class Delta(msgspec.Struct):
    """A piece of an assistant message."""

    content: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class ChunkChoice(msgspec.Struct):
    index: int = 0
    delta: Delta | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    """One event of a stream; `error` is an error that ends it."""

    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    error: Any = None


class ErrorObject(msgspec.Struct):
    """An API error; `body` is all of it."""

    message: str
    code: str | None
    body: dict[str, Any]


def error_object(value: Any) -> ErrorObject:
    """The error in the `error` field of a reply, whatever its shape."""
    if not isinstance(value, dict):
        return ErrorObject(str(value), None, {})
    given = value.get("message")
    message = given.strip() if isinstance(given, str) else ""
    code = value.get("code") or value.get("type")
    return ErrorObject(
        message or "The server gave no reason.",
        None if code is None else str(code),
        value,
    )
