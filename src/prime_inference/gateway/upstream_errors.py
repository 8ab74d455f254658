"""An upstream's refusal, in our words.

The text of a client error (4xx) is passed on, since it is about the client's own request;
that of a server error is not: it can hold addresses, paths and other tenants' data.
"""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import (
    ApiError,
    CapacityExhausted,
    ContextLengthExceeded,
    ContextTooSmall,
    UpstreamFailure,
    UpstreamRefused,
)

MAX_ERROR_BYTES = 64 * 1024
MAX_MESSAGE_CHARACTERS = 1000
MAX_RETRY_SECONDS = 3600.0  # nobody waits longer; an upstream may write any number

REFUSALS = frozenset({400, 409, 413, 422})
"""The request's own fault: the client is told, and no other deployment is asked."""

PASSING = frozenset({408, 425, 429})
"""Of this moment: another deployment is asked, and this one is as good as before."""


def refuses_us(status: int) -> bool:
    """Whether the engine did not take the request for a reason that may hold for all of them.

    Credentials, model name, path or media type; or it is the request after all, as some
    firewalls judge it. A request of our own tells which (`gateway.readiness`).
    """
    return 400 <= status < 500 and status not in REFUSALS and status not in PASSING


_CONTEXT = re.compile(
    r"maximum context length|exceeds? the available context size|context_length_exceeded", re.I
)
_STATED_LIMIT = re.compile(r"maximum context length is (\d{1,9}) tokens")  # vLLM, OpenAI


class _ErrorBody(Struct):
    message: str = ""
    type: str | None = None
    n_prompt_tokens: int | None = None  # llama.cpp
    n_ctx: int | None = None  # llama.cpp


class _Envelope(Struct):
    error: Raw = Raw(b"")  # msgspec decodes no union with `Raw`
    message: str = ""


def upstream_error(
    status: int, body: bytes, retry_after: bytes | None, context_tokens: int
) -> ApiError:
    """What the client is told when an upstream answered with an error status."""
    if status in REFUSALS:
        return _refusal(status, body, context_tokens)
    failure = UpstreamFailure(f"The model's engine failed (HTTP {status}).")
    if status in (429, 503):
        failure = CapacityExhausted(
            "The model is at capacity. Try again shortly.", retry_after=_seconds(retry_after)
        )
    failure.upstream_status = status
    return failure


def _refusal(status: int, body: bytes, context_tokens: int) -> ApiError:
    error = _parse(body)
    if error.type == "exceed_context_size_error" or _CONTEXT.search(error.message):
        return _context_error(error, context_tokens)
    message = error.message[:MAX_MESSAGE_CHARACTERS] or f"no reason given (HTTP {status})"
    return UpstreamRefused(f"The model refused the request: {message}")


def _context_error(error: _ErrorBody, context_tokens: int) -> ApiError:
    """`context_tokens` is the model's: a deployment with less of them is not the last word."""
    stated = _STATED_LIMIT.search(error.message)
    limit = error.n_ctx or (int(stated[1]) if stated else context_tokens)
    text = f"This model's maximum context length is {limit} tokens."
    if error.n_prompt_tokens:
        text += f" Your prompt has {error.n_prompt_tokens} tokens."
    kind = ContextTooSmall if limit < context_tokens else ContextLengthExceeded
    return kind(f"{text} Please shorten it.", param="messages")


def _parse(body: bytes) -> _ErrorBody:
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
        if not bytes(envelope.error):
            return _ErrorBody(message=envelope.message)
        return msgspec.json.decode(envelope.error, type=_ErrorBody)
    except (ValueError, RecursionError):
        return _ErrorBody()


def _seconds(retry_after: bytes | None) -> float:
    """A Retry-After in seconds, 1 at the least; 1 where it is missing or none."""
    text = (retry_after or b"").strip().decode("latin-1")
    try:
        found = parsedate_to_datetime(text).timestamp() - time.time()
    except (TypeError, ValueError):
        found = float(text) if text.isdecimal() else 0.0
    return min(max(found, 1.0), MAX_RETRY_SECONDS)
