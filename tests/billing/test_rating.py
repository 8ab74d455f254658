"""What a generation costs: the table "What is billed" of docs/billing.md, row by row."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings

from prime_inference.billing.rating import cost, most, usage_event
from prime_inference.domain.limits import MOST_AMOUNT
from prime_inference.domain.prices import Price, PriceBook
from prime_inference.domain.usage import NO_USAGE, Usage
from prime_inference.domain.usage_event import NO_PRICE

from .samples import generation, price, prices, usages


def test_each_kind_of_token_is_billed_at_its_own_rate_once():
    usage = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=40, reasoning_tokens=4)
    picodollars = 60 * 1_000_000 + 40 * 100_000 + 6 * 2_000_000 + 4 * 3_000_000
    assert cost(usage, price()) == picodollars // 1000
    assert cost(usage, price(request=5_000_000)) == picodollars // 1000 + 5_000


@settings(deadline=None)
@given(usages(), prices())
def test_a_cost_is_the_exact_sum_rounded_once_half_up(usage: Usage, price: Price):
    for batch in (False, True):
        exact = Fraction(
            (usage.prompt_tokens - usage.cached_tokens) * price.prompt
            + usage.cached_tokens * price.cached_prompt
            + (usage.completion_tokens - usage.reasoning_tokens) * price.completion
            + usage.reasoning_tokens * price.reasoning
            + price.request,
            1000,
        )
        if batch:
            exact *= Fraction(10_000 - price.batch_discount, 10_000)
        assert -Fraction(1, 2) < cost(usage, price, batch=batch) - exact <= Fraction(1, 2)


@settings(deadline=None)
@given(usages(), prices())
def test_what_is_held_is_never_less_than_the_cost(usage: Usage, price: Price):
    tokens = usage.prompt_tokens, usage.completion_tokens
    full, batch = most(price, *tokens), most(price, *tokens, batch=True)
    assert cost(usage, price) <= full
    assert cost(usage, price, batch=True) <= batch <= full


def test_half_a_nanodollar_is_rounded_up():
    assert cost(Usage(1, 0), price(prompt=500)) == 1
    assert cost(Usage(1, 0), price(prompt=499)) == 0


def test_a_batch_is_discounted_before_rounding():
    assert cost(Usage(1, 0), price(prompt=1000, batch_discount=5000), batch=True) == 1
    assert cost(Usage(3, 0), price(prompt=333, batch_discount=5000), batch=True) == 0
    assert cost(Usage(100, 0), price(batch_discount=5000), batch=True) == 50_000


def test_flex_pays_the_price_of_a_batch():
    half, flex = price(batch_discount=5000), generation(pool="flex")
    full = usage_event(generation(), half).cost
    assert usage_event(flex, half).cost * 2 == full
    assert usage_event(flex, price()).cost == full
    assert usage_event(flex, price(batch_discount=10_000)).cost == 0
    unknown = usage_event(flex, None)
    assert (unknown.cost, unknown.price_version, unknown.pool) == (0, NO_PRICE, "flex")


def test_a_reservation_s_discount_is_none_of_flex():
    half, flex = price(batch_discount=5000), generation(pool="flex")
    assert usage_event(flex, half, discount=9000) == usage_event(flex, half)


def test_an_engine_that_counts_more_parts_than_the_whole_is_believed_up_to_the_whole():
    assert cost(Usage(10, 5, cached_tokens=99, reasoning_tokens=99), price()) == (
        10 * 100 + 5 * 3_000
    )


@pytest.mark.parametrize(
    ("fields", "charged"),
    [
        ({"outcome": "complete"}, True),
        ({"outcome": "cancelled"}, True),
        ({"outcome": "cancelled", "usage": Usage(100, 0)}, False),
        ({"outcome": "failed"}, False),
        ({"outcome": "refused", "usage": NO_USAGE}, False),
        ({"outcome": "complete", "usage": Usage(100, 0)}, False),
        ({"outcome": "complete", "usage": Usage(100, 0), "route": "embeddings"}, True),
        ({"outcome": "failed", "usage": Usage(100, 0), "route": "embeddings"}, False),
    ],
    ids=[
        "whole",
        "client left",
        "client left at once",
        "failed in mid-answer",
        "refused",
        "no completion",
        "embeddings",
        "failed embeddings",
    ],
)
def test_what_is_billed(fields: dict[str, object], charged: bool):
    event = usage_event(generation(**fields), price(request=1_000_000))
    assert (event.cost > 0) is charged
    assert event.price_version == 1


def test_an_event_without_a_price_has_its_tokens_and_costs_nothing():
    event = usage_event(generation(), None)
    assert (event.cost, event.price_version) == (0, 0)
    assert (event.prompt_tokens, event.completion_tokens) == (100, 10)


def test_the_time_of_an_event_is_when_its_request_was_accepted():
    assert usage_event(generation(), price()).at == 1_800_000_000_250_000


def test_a_price_holds_from_its_moment_on_and_old_ones_stay():
    first, second = price(), price(version=2, effective_from=100.0, prompt=5)
    book = PriceBook([second, first])
    assert book.at("acme/echo-1", 99.999) == first
    assert book.at("acme/echo-1", 100.0) == second
    assert book.at("acme/none", 100.0) is None
    assert PriceBook([second]).at("acme/echo-1", 99.0) is None
    assert [each.version for each in book.versions("acme/echo-1")] == [1, 2]


def test_of_two_prices_from_the_same_moment_the_later_version_holds():
    later = price(version=2, prompt=7)
    assert PriceBook([later, price()]).at("acme/echo-1", 1.0) == later


@pytest.mark.parametrize("fields", [{"prompt": -1}, {"batch_discount": 10_001}])
def test_a_price_with_impossible_numbers_cannot_be_made(fields: dict[str, int]):
    with pytest.raises(ValueError, match=r"negative|between"):
        price(**fields)


def test_a_cost_beyond_every_transfer_is_cut_and_flagged():
    dear = usage_event(generation(), price(completion=10**40))
    assert (dear.cost, dear.estimated) == (MOST_AMOUNT, True)
    assert not usage_event(generation(), price()).estimated
