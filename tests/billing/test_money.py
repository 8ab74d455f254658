"""Money is whole numbers; dollars are only how it is written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.domain.money import nanodollars, rate, usd_per_mtok, usd_text


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_an_amount_written_in_dollars_is_read_back_exactly(amount: int):
    assert nanodollars(usd_text(amount)) == amount


@settings(deadline=None)
@given(st.integers(0, 10**12))
def test_a_rate_written_per_million_tokens_is_read_back_exactly(picodollars: int):
    assert rate(f"{usd_per_mtok(picodollars):f}") == picodollars


def test_a_dollar_per_million_tokens_is_a_million_picodollars_a_token():
    assert rate("1") == 1_000_000
    assert rate("0.000001") == 1
    assert usd_text(nanodollars("1.5")) == "1.50"
    assert usd_text(-1) == "-0.000000001"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1,5",
        "nan",
        "inf",
        "0.0000001",
        "-1",
        "1e13",
        "9e999999999",
        "1e-999999999",
        "1.0000000000000000000000000000001",
        "1_000",
        "\uff11",  # a full-width one
        "\u0661.5",
        "0x1",
        "1 000",
        "1e9999999999999999999",
    ],
)
def test_what_is_no_price_is_refused(text: str):
    with pytest.raises(ValueError, match=r"not|negative|more than"):
        rate(text)


@pytest.mark.parametrize(
    "text", ["", "1e-10", "NaN", "1_0", "\uff11", "0.0000000001", "1e10", "-1e10"]
)
def test_what_is_no_amount_is_refused(text: str):
    with pytest.raises(ValueError, match=r"not|more than"):
        nanodollars(text)
