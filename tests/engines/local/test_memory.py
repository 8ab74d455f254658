"""How long a context is reserved."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.engines.local.gguf import GgufHead, read_head
from prime_inference.engines.local.memory import (
    MIN_CONTEXT_TOKENS,
    SHARE,
    NotEnoughMemory,
    fitting_context,
    free_memory,
    require_room,
)

GIB = 2**30
LONG = GgufHead("llama", "Long", 131_072, True, kv_bytes_per_token=131_072)


def test_the_default_model_gets_what_it_was_trained_with(model_file: Path):
    head = read_head(model_file)
    assert head.kv_bytes_per_token == 23_040  # 30 layers, 3 heads of 64 keys and 64 values
    tokens = fitting_context(head, weights_bytes=98_362_432, slots=2, free_bytes=GIB)
    assert tokens == head.context_tokens == 8192


def test_a_context_that_does_not_fit_is_shortened():
    tokens = fitting_context(LONG, weights_bytes=4 * GIB, slots=2, free_bytes=16 * GIB)
    assert tokens == 32_768


def test_no_room_for_a_useful_context_says_how_much_is_needed():
    with pytest.raises(NotEnoughMemory, match=r"5,632 MiB.*4,096 MiB are free.*--slots"):
        fitting_context(LONG, weights_bytes=4 * GIB, slots=2, free_bytes=4 * GIB)


def test_a_file_that_says_nothing_gets_a_usual_context():
    head = GgufHead("mamba", "", 0, False)
    assert fitting_context(head, weights_bytes=GIB, slots=2, free_bytes=GIB) == 4096


@given(
    st.integers(0, 2**20),
    st.integers(1, 2**24),
    st.integers(0, 2**40),
    st.integers(1, 64),
    st.integers(0, 2**42),
)
def test_a_context_fits_and_is_useful_or_there_is_none(
    trained: int, kv_bytes: int, weights_bytes: int, slots: int, free_bytes: int
):
    head = GgufHead("llama", "", trained, True, kv_bytes_per_token=kv_bytes)
    try:
        tokens = fitting_context(
            head, weights_bytes=weights_bytes, slots=slots, free_bytes=free_bytes
        )
    except NotEnoughMemory:
        return
    assert tokens >= min(MIN_CONTEXT_TOKENS, trained or MIN_CONTEXT_TOKENS)
    assert weights_bytes + slots * tokens * kv_bytes <= free_bytes * SHARE


def test_a_context_that_was_asked_for_is_had_if_free_memory_holds_it():
    require_room(LONG, context_tokens=65_536, slots=2, free_bytes=16 * GIB)
    with pytest.raises(NotEnoughMemory, match=r"65,537 tokens.*16,384 MiB are free.*--slots"):
        require_room(LONG, context_tokens=65_537, slots=2, free_bytes=16 * GIB)


def test_a_context_that_llama_cpp_cannot_count_is_refused_whatever_the_file_says():
    silent = GgufHead("mamba", "", 0, False)
    require_room(silent, context_tokens=2**30, slots=1, free_bytes=GIB)
    with pytest.raises(NotEnoughMemory, match="--context-tokens"):
        require_room(silent, context_tokens=2**30, slots=2, free_bytes=GIB)


def test_this_machine_has_free_memory():
    assert 2**20 < free_memory() < 2**50
