"""What a field of a trace may hold, whatever its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from prime_inference.bench.agents.traces.errors import TraceError

MOST_TOKENS = 100_000_000  # ten times the longest context that a model has been offered with
MOST_SECONDS = 1e10  # three centuries: a time since 1970 fits, a slip of the unit mostly not

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
BlockId = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=MOST_SECONDS * 1000)]
Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

ROLES: frozenset[str] = frozenset(get_args(Role))


def check_message(message: Mapping[str, Any], file: str, line: int, path: str) -> None:
    """Raises TraceError for what no server takes as a message."""
    if "role" not in message:
        raise TraceError(file, line, f"{path}.role", "is missing")
    if not isinstance(message["role"], str) or message["role"] not in ROLES:
        raise TraceError(file, line, f"{path}.role", f"must be one of {', '.join(sorted(ROLES))}")
    content = message.get("content")
    if content is None and not message.get("tool_calls") and not message.get("function_call"):
        raise TraceError(file, line, f"{path}.content", "is missing")
    parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    if content is not None and not isinstance(content, str) and not parts:
        raise TraceError(file, line, f"{path}.content", "must be a text or a list of parts")
