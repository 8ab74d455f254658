"""What the engine's process is told."""

from __future__ import annotations

import os

from msgspec import Struct

PREFILL_BATCH_TOKENS = 16
"""Prompt tokens evaluated between two looks at whether the client has left. The engine
notices at the second write after he left, so two batches must take under a second: at 16
tokens, anything faster than 32 tokens/s will do."""


def engine_threads(cores: int | None = None) -> int:
    """One core is left for the gateway: llama.cpp's threads on all of them starve it."""
    return max(1, (cores or len(os.sched_getaffinity(0))) - 1)


class EngineSettings(Struct, frozen=True):
    """One run of the engine's process."""

    model_file: str
    port: int
    slots: int
    context_tokens: int  # of one slot
    threads: int
    parent: int  # process id
    batch_tokens: int = PREFILL_BATCH_TOKENS
