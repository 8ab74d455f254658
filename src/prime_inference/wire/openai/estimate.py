"""Tokens of texts whose engine reports no usage: a rule, not a count (docs/billing.md)."""

from __future__ import annotations

from typing import Any

import msgspec

BYTES_A_TOKEN = 5
"""English has 4 to 5 bytes of UTF-8 a token in today's vocabularies, code and most other scripts
fewer: who is in doubt asks for less. Nothing is added for templates and tools, for the same
reason."""

TEXTS = frozenset({
    "content", "text", "prompt", "input", "name", "arguments", "refusal", "reasoning",
    "reasoning_content",
})  # fmt: skip
"""Members whose strings are read and written by models; images are not among them."""


def estimated_tokens(value: Any) -> int:
    """Tokens of every text in a request's content or an answer; ids of tokens are exact."""
    return -(-_bytes(msgspec.to_builtins(value), "") // BYTES_A_TOKEN)


def _bytes(value: Any, member: str) -> int:
    if isinstance(value, dict):
        return sum(_bytes(part, name) for name, part in value.items())
    if isinstance(value, list):
        return sum(_bytes(part, member) for part in value)
    if member not in TEXTS:
        return 0
    if isinstance(value, str):
        return len(value.encode())
    return BYTES_A_TOKEN if isinstance(value, int) else 0
