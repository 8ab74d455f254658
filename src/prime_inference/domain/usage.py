"""Tokens of one generation."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

UsageSource = Literal["upstream", "counted", "none"]
"""Who counted: the engine; the gateway, by a rule (docs/billing.md); or nobody."""


class Usage(Struct, frozen=True, gc=False):
    """Token counts. `cached_tokens` is part of prompt, `reasoning_tokens` of completion."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = "none"

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


NO_USAGE = Usage()
