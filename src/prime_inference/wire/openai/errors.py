"""OpenAI's error object, with OpenRouter's `metadata.error_type`."""

from __future__ import annotations

import math

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import ApiError, MethodNotAllowed
from prime_inference.wire.http import Headers

JSON_TYPE = (b"content-type", b"application/json")


class ErrorObject(Struct):
    """What an in-band error of a chat stream says, as `error_object` wrote it."""

    message: str = "The answer could not be completed."
    type: str = "server_error"
    code: str = "internal_error"


def decode_error(raw: Raw) -> ErrorObject:
    """Of an event of our own stream: never anything else than an error object."""
    return msgspec.json.decode(raw, type=ErrorObject)


def error_object(error: ApiError) -> dict[str, object]:
    """The value of `error`; `code` and `type` are always strings."""
    return {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
        "metadata": {"error_type": error.error_type, **error.details},
    }


def error_headers(error: ApiError) -> Headers:
    """Headers of an error answer in any dialect. `Retry-After` is whole seconds, rounded up."""
    headers = [JSON_TYPE]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    return headers


def render_error(error: ApiError, status: int | None = None) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an error answer."""
    body = msgspec.json.encode({"error": error_object(error)})
    return status or error.status, error_headers(error), body
