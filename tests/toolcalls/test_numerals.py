"""Numbers between bounds: exactly those, in every spelling that is allowed."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.numerals import INTEGER, MOST_DIGITS, NUMBER, bounded
from prime_inference.toolcalls.shapes import Number
from tests.toolcalls.as_regex import compiled


def accepts(number: Number, text: str) -> bool:
    body = bounded(number)
    return body is not None and compiled(body).fullmatch(text) is not None


@given(low=st.integers(-1200, 1200), width=st.integers(0, 1500), other=st.integers(-3000, 3000))
@example(low=-1, width=2, other=0)
@example(low=0, width=0, other=0)
@example(low=99, width=1, other=100)
def test_an_integer_is_written_if_and_only_if_it_is_within_the_bounds(low, width, other):
    number = Number(integer=True, low=low, high=low + width)
    for value in (low - 1, low, low + width, low + width + 1, other):
        assert accepts(number, str(value)) == (low <= value <= low + width)


@given(low=st.integers(-(10**25), 10**25), other=st.integers(-(10**30), 10**30))
def test_an_integer_with_one_bound_is_written_beyond_it(low, other):
    assert accepts(Number(integer=True, low=low), str(other)) == (other >= low)
    assert accepts(Number(integer=True, high=low), str(other)) == (other <= low)


quarters = st.integers(-200, 200).map(lambda n: n / 8)


@settings(deadline=None)
@given(
    low=st.none() | quarters, high=st.none() | quarters, above=st.booleans(), below=st.booleans(),
    value=st.decimals(-30, 30, places=4) | quarters.map(Decimal),
)  # fmt: skip
@example(low=0.25, high=0.75, above=True, below=False, value=Decimal("0.2500001"))
@example(low=0.0, high=0.0, above=False, below=False, value=Decimal("0"))
@example(low=None, high=0.0, above=False, below=True, value=Decimal("0"))
@example(low=0.05, high=1.0, above=False, below=True, value=Decimal("0.049"))
def test_a_decimal_is_written_if_and_only_if_it_is_within_the_bounds(
    low, high, above, below, value
):
    if low is None and high is None:
        return
    number = Number(low=low, high=high, above_low=above and low is not None, below_high=below)
    fits = (low is None or value > Decimal(low) or (value == Decimal(low) and not above)) and (
        high is None or value < Decimal(high) or (value == Decimal(high) and not below)
    )
    text = format(value, "f")
    assert accepts(number, text) == fits or (value == 0 and text.startswith("-"))
    assert accepts(number, format(value.normalize(), "f")) == fits


@pytest.mark.parametrize(
    "text", ["0", "-1", "9" * MOST_DIGITS, "1.5", "0.001", "1e5", "1E+269", "2e-7"]
)
def test_a_number_without_bounds_has_a_fraction_and_an_exponent(text):
    assert compiled(NUMBER).fullmatch(text)


@pytest.mark.parametrize(
    "text", ["01", "+1", ".5", "1.", "1e", "NaN", "9" * (MOST_DIGITS + 1), "1e270"]
)
def test_no_reader_is_given_a_number_that_it_must_refuse(text):
    assert not compiled(NUMBER).fullmatch(text)


def test_the_largest_number_that_can_be_written_is_finite():
    assert compiled(NUMBER).fullmatch("9" * MOST_DIGITS + "e269")
    assert float("9" * MOST_DIGITS + "e269") < float("inf")


def test_integers_have_neither_fraction_nor_exponent():
    assert compiled(INTEGER).fullmatch("-12")
    assert not compiled(INTEGER).fullmatch("1.0")
    assert not compiled(INTEGER).fullmatch("1e2")


def test_bounds_that_no_number_meets_write_nothing():
    assert bounded(Number(integer=True, low=10**40)) is None
