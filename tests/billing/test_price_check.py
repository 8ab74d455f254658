"""A price that is off by a factor is seen before it bills anybody."""

from __future__ import annotations

import pytest

from prime_inference.billing.price_check import preview, require_usual_slot_price
from prime_inference.domain.errors import InvalidRequest, PriceDoubtful
from prime_inference.domain.money import nanodollars, rate
from prime_inference.domain.reservations import Period

from .samples import price

MILLION = 1_000_000


def test_a_usual_price_raises_no_doubt():
    assert preview(price(), None).doubts == ()
    assert preview(price(), price(prompt=2 * MILLION)).doubts == ()


@pytest.mark.parametrize("name", ["prompt", "cached_prompt", "completion", "reasoning"])
@pytest.mark.parametrize("factor", [MILLION, 1 / MILLION])
def test_a_price_a_million_times_off_is_doubted(name: str, factor: float):
    right = price(
        prompt=rate("0.15"),
        cached_prompt=rate("0.075"),
        completion=rate("0.6"),
        reasoning=rate("0.6"),
    )
    wrong = {name: int(getattr(right, name) * factor) or 1}
    alone = preview(price(**wrong), None)
    assert name.replace("_", " ") in alone.doubts[0]
    assert len(alone.doubts) <= 2  # cached beside prompt is the other


def test_a_price_far_from_the_one_before_is_doubted():
    assert preview(price(prompt=101 * MILLION), price()).doubts
    assert not preview(price(prompt=100 * MILLION), price()).doubts
    assert preview(price(completion=19_999), price()).doubts


FREE = {"prompt": 0, "cached_prompt": 0, "completion": 0, "reasoning": 0}


@pytest.mark.parametrize("name", FREE)
def test_no_token_is_free_by_accident(name: str):
    doubt = preview(price(**{name: 0}), None).doubts[0]
    assert name.replace("_", " ") in doubt
    assert "free" in doubt


def test_a_model_that_was_free_may_have_a_price():
    assert len(preview(price(**FREE), price()).doubts) == len(FREE)
    assert preview(price(), price(**FREE)).doubts == ()


@pytest.mark.parametrize(
    ("request_price", "before", "doubtful"),
    [
        ("0", "0", False),
        ("5", "0", False),
        ("5", "4", False),
        ("0.005", "0", True),  # typed per request
        ("5000", "0", True),  # typed per million
        ("0", "5", True),  # left out
        ("0.5", "100", True),
        ("100", "0.5", True),
    ],
)
def test_the_price_of_a_request_is_looked_at_as_well(
    request_price: str, before: str, doubtful: bool
):
    new, old = (price(request=nanodollars(text)) for text in (request_price, before))
    assert bool(preview(new, old).doubts) is doubtful


@pytest.mark.parametrize(
    ("percent", "doubtful"), [(0, False), (50, False), (0.5, True), (100, True)]
)
def test_a_discount_is_no_fraction_and_not_everything(percent: float, doubtful: bool):
    assert bool(preview(price(batch_discount=round(percent * 100)), None).doubts) is doubtful


@pytest.mark.parametrize(
    ("percent", "before", "doubtful"),
    [
        (0, 90, True),
        (0, 1, True),
        (50, 90, False),
        (90, 50, False),
        (90, 0, False),
        (5, 99.5, True),
    ],
)
def test_a_discount_that_was_left_out_is_doubted_and_flex_is_in_the_preview(
    percent: float, before: float, doubtful: bool
):
    new, old = (price(batch_discount=round(each * 100)) for each in (percent, before))
    assert bool(preview(new, old).doubts) is doubtful
    told = preview(new, price(batch_discount=9000))
    assert ", as flex $" in str(told)
    assert str(told).endswith("(now $0.0002).")


def test_what_is_cached_costs_no_more_than_what_is_not():
    assert preview(price(cached_prompt=1_000_001), None).doubts


@pytest.mark.parametrize("fields", [{"prompt": 10**12 + 1}, {"request": 10**15 + 1}])
def test_a_price_that_no_column_could_add_up_cannot_be_confirmed(fields: dict[str, int]):
    with pytest.raises(InvalidRequest, match=r"No .* costs more"):
        preview(price(**fields), None)


def test_a_doubt_says_what_would_be_paid_and_how_to_confirm():
    preview(price(), None).confirmed()
    with pytest.raises(PriceDoubtful) as refused:
        preview(price(prompt=0, cached_prompt=0), price()).confirmed()
    assert refused.value.code == "price_doubtful"
    assert "would cost $0.001 (now $0.002)" in str(refused.value.details["preview"])
    assert "--confirm" in refused.value.message


def test_the_preview_says_what_a_sample_would_cost():
    assert str(preview(price(), price(prompt=MILLION // 2))) == (
        "1000 prompt and 500 completion tokens would cost $0.002 (now $0.0015)."
    )


@pytest.mark.parametrize(
    ("usd", "slots", "period", "doubtful"),
    [
        ("12.5", 8, Period.HOUR, False),
        ("9000", 64, Period.MONTH, False),
        ("9000", 64, Period.HOUR, True),
        ("12500000", 8, Period.HOUR, True),
        ("0.0000125", 8, Period.HOUR, True),
        ("0", 8, Period.HOUR, True),
        ("800", 8, Period.HOUR, False),
        ("0.01", 64, Period.MONTH, True),
    ],
)
def test_a_reservation_s_price_is_looked_at_by_the_hour_of_a_slot(
    usd: str, slots: int, period: Period, doubtful: bool
):
    if not doubtful:
        require_usual_slot_price(nanodollars(usd), slots, period)
        return
    with pytest.raises(PriceDoubtful) as refused:
        require_usual_slot_price(nanodollars(usd), slots, period)
    assert "--confirm" in refused.value.message
    assert f"for each {period}" in str(refused.value.details["preview"])
