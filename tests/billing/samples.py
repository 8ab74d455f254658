"""Generations and prices for tests, and the shapes Hypothesis draws them from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from prime_inference.domain.generation import Generation
from prime_inference.domain.prices import Price
from prime_inference.domain.usage import Usage

MODEL = "acme/echo-1"

counts = st.integers(0, 2_000_000)
rates = st.integers(0, 5_000_000_000)


def price(**fields: Any) -> Price:
    """$1, $0.10 cached, $2 and $3 per million tokens."""
    return Price(
        **{
            "model": MODEL,
            "version": 1,
            "effective_from": 0.0,
            "prompt": 1_000_000,
            "cached_prompt": 100_000,
            "completion": 2_000_000,
            "reasoning": 3_000_000,
            **fields,
        }
    )


def generation(**fields: Any) -> Generation:
    """A whole answer of 100 prompt and 10 completion tokens."""
    return Generation(
        **{
            "id": "g1",
            "tenant": "team-a",
            "key_id": "key1",
            "route": "chat/completions",
            "model": MODEL,
            "deployment": "engine-0",
            "streamed": True,
            "outcome": "complete",
            "status": 200,
            "error": "",
            "usage": Usage(100, 10, source="upstream"),
            "started_at": 1_800_000_000.25,
            "first_token_seconds": 0.1,
            "duration_seconds": 1.5,
            **fields,
        }
    )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt, completion = draw(counts), draw(counts)
    cached, reasoning = draw(st.integers(0, prompt)), draw(st.integers(0, completion))
    return Usage(prompt, completion, cached, reasoning, "upstream")


@st.composite
def prices(draw: st.DrawFn) -> Price:
    names = ("prompt", "cached_prompt", "completion", "reasoning", "request")
    return price(
        batch_discount=draw(st.integers(0, 10_000)), **{name: draw(rates) for name in names}
    )
