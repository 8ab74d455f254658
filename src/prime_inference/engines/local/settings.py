"""What the engine's process is told."""

from __future__ import annotations

import os

from msgspec import Struct

PREFILL_BATCH_TOKENS = 16
"""Prompt tokens evaluated between two looks at whether the client has left. The engine
notices at the second write after he left, so two batches must take under a second: at 16
tokens, anything faster than 32 tokens/s will do. Batches of 64 read prompts 6 % faster."""

PROMPT_CACHE_MIB = 512
"""Memory for the prompts of conversations that hold no slot; llama.cpp's own limit is 8 GiB.
Coming back to one of 630 tokens took 0.08 s instead of 14 s; SmolLM2 needs 14 MiB for it."""

ENGINE_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""The wheel's llama.cpp is built with OpenMP, whose waiting threads spin unless told not to.
Two of them on two cores that others use too: 9 tokens/s spinning, 62 sleeping."""


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
