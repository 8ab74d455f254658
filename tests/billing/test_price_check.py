"""A price that is off by a factor is seen before it bills anybody."""

from __future__ import annotations

import pytest

from prime_inference.billing.price_check import preview
from prime_inference.domain.money import rate

from .samples import price

MILLION = 1_000_000


def test_a_usual_price_raises_no_doubt():
    assert preview(price(), None).doubts == ()
    assert preview(price(), price(prompt=2 * MILLION)).doubts == ()


@pytest.mark.parametrize("name", ["prompt", "cached_prompt", "completion", "reasoning"])
@pytest.mark.parametrize("factor", [MILLION, 1 / MILLION])
def test_a_price_a_million_times_off_is_doubted(name: str, factor: float):
    right = price(prompt=rate("0.15"), cached_prompt=rate("0.075"), completion=rate("0.6"))
    wrong = {name: int(getattr(right, name) * factor) or 1}
    alone = preview(price(**wrong), None)
    assert len(alone.doubts) == 1
    assert name.replace("_", " ") in alone.doubts[0]


def test_a_price_far_from_the_one_before_is_doubted():
    assert preview(price(prompt=101 * MILLION), price()).doubts
    assert not preview(price(prompt=100 * MILLION), price()).doubts
    assert preview(price(completion=19_999), price()).doubts


def test_a_model_may_be_free():
    free = price(prompt=0, cached_prompt=0, completion=0, reasoning=0)
    assert preview(free, price()).doubts == ()
    assert preview(price(), free).doubts == ()


def test_the_preview_says_what_a_sample_would_cost():
    assert str(preview(price(), price(prompt=MILLION // 2))) == (
        "1000 prompt and 500 completion tokens would cost $0.002 (now $0.0015)."
    )
