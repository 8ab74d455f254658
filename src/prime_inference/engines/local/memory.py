"""How long a context fits this machine's memory."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from prime_inference.domain.errors import CannotStart
from prime_inference.engines.local.gguf import GgufHead

SHARE = 0.75  # of the free memory; the rest is for activations, the prompt cache and others
STEP_TOKENS = 256  # llama.cpp rounds a context up to this
MIN_CONTEXT_TOKENS = 512  # a shorter one holds no conversation
MAX_CELLS = 2**31 - 1  # llama.cpp counts the tokens of all slots in 32 bits
CGROUP = Path("/sys/fs/cgroup")
UNKNOWN_CONTEXT_TOKENS = 4096  # for a file that does not say what it was trained with


class NotEnoughMemory(CannotStart):
    """The model and a useful context do not fit."""


def fitting_context(head: GgufHead, *, weights_bytes: int, slots: int, free_bytes: int) -> int:
    """Tokens of context for each of `slots`: what the model was trained with, if that fits.

    A model trained with 131,072 tokens may need 16 GB for one context. Raises NotEnoughMemory.
    """
    trained = head.context_tokens or UNKNOWN_CONTEXT_TOKENS
    if not head.kv_bytes_per_token:
        return trained  # nothing to reckon with: the engine will say whether it fits
    room = int(free_bytes * SHARE) - weights_bytes
    tokens = room // (slots * head.kv_bytes_per_token) // STEP_TOKENS * STEP_TOKENS
    if tokens < min(trained, MIN_CONTEXT_TOKENS):
        need = weights_bytes + slots * head.kv_bytes_per_token * MIN_CONTEXT_TOKENS
        raise NotEnoughMemory(
            f"The model needs {_mib(need / SHARE)} MiB of free memory with {slots} slots;"
            f" {_mib(free_bytes)} MiB are free. Use fewer --slots or a smaller model."
        )
    return min(trained, tokens)


def require_room(head: GgufHead, *, context_tokens: int, slots: int, free_bytes: int) -> None:
    """Raises NotEnoughMemory for a context that was asked for and cannot be had.

    Only keys and values are counted, and all of the free memory: who asks for a context may
    want to spend more than `fitting_context` does, and weights can be read from disk again.
    """
    cells = slots * context_tokens
    need = cells * head.kv_bytes_per_token
    if need > free_bytes:
        raise NotEnoughMemory(
            f"A context of {context_tokens:,} tokens in {slots} slots needs {_mib(need)} MiB of"
            f" memory; {_mib(free_bytes)} MiB are free. Use a smaller --context-tokens or fewer"
            " --slots."
        )
    if cells > MAX_CELLS:
        raise NotEnoughMemory(
            f"llama.cpp cannot hold a context of {context_tokens:,} tokens in {slots} slots: use a"
            " smaller --context-tokens or fewer --slots."
        )


def free_memory() -> int:
    """Bytes that a new process can use: the least that kernel and cgroup leave."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return min([_kilobytes(fields["MemAvailable"]), *_cgroup_rooms(CGROUP)])


def _cgroup_rooms(root: Path) -> Iterable[int]:
    """What each limit on this process leaves (cgroup version 2)."""
    own = Path("/proc/self/cgroup").read_text().rpartition("::/")[2].strip()
    for group in (root / own, *(root / own).parents):
        try:
            limit = (group / "memory.max").read_text().strip()
            used = int((group / "memory.current").read_text())
        except OSError:  # no such controller here, or version 1
            continue
        if limit != "max":
            yield max(0, int(limit) - used)


def _kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"
