"""A price that looks wrong by a factor is refused before it bills anybody.

Prices are typed in dollars per million tokens by people who also read prices per token:
the classic mistake is a factor of 1,000,000 one way or the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from prime_inference.billing.rating import cost
from prime_inference.domain.money import usd_per_mtok, usd_text
from prime_inference.domain.prices import Price
from prime_inference.domain.usage import Usage

LOWEST_RATE = 100  # $0.0001 per million tokens: a tenth of the cheapest cached prompt on sale
HIGHEST_RATE = 5_000_000_000  # $5,000: eight times the dearest completion ever listed ($600)
MOST_CHANGE = 100  # no price of a model has moved by more at once; mistakes are 1,000,000
SAMPLE = Usage(prompt_tokens=1_000, completion_tokens=500)
TOKEN_RATES = ("prompt", "cached_prompt", "completion", "reasoning")


@dataclass(frozen=True, slots=True)
class Preview:
    """What a price would mean, and what looks wrong about it."""

    doubts: tuple[str, ...]
    sample_cost: int  # nanodollars of SAMPLE
    previous_sample_cost: int | None

    def __str__(self) -> str:
        before = "" if self.previous_sample_cost is None else (
            f" (now ${usd_text(self.previous_sample_cost)})"
        )  # fmt: skip
        return (
            f"{SAMPLE.prompt_tokens} prompt and {SAMPLE.completion_tokens} completion tokens"
            f" would cost ${usd_text(self.sample_cost)}{before}."
        )


def preview(price: Price, previous: Price | None) -> Preview:
    """What the new price means beside the one in effect before it."""
    doubts = [
        doubt
        for name in TOKEN_RATES
        if (doubt := _doubt(name, getattr(price, name), getattr(previous, name, 0)))
    ]
    return Preview(
        tuple(doubts),
        cost(SAMPLE, price),
        None if previous is None else cost(SAMPLE, previous),
    )


def _doubt(name: str, rate: int, before: int) -> str:
    shown = f"{name.replace('_', ' ')} ${usd_per_mtok(rate):f} per million tokens"
    if 0 < rate < LOWEST_RATE:
        return f"{shown} is next to nothing: is it a price per token?"
    if rate > HIGHEST_RATE:
        return f"{shown} is more than any model costs: is it a price per billion?"
    if before and rate and not before <= rate * MOST_CHANGE <= before * MOST_CHANGE**2:
        return f"{shown} was ${usd_per_mtok(before):f}: over {MOST_CHANGE} times apart."
    return ""
