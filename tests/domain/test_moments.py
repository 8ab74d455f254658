"""Moments that people write: one reading, with bounds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.moments import END, FIRST, iso, moment


def test_a_moment_is_utc_unless_it_says_otherwise():
    noon = datetime(2026, 12, 31, 12, tzinfo=UTC).timestamp()
    for text in ("2026-12-31T12:00:00Z", "2026-12-31T12:00", "2026-12-31T14:00:00+02:00"):
        assert moment(text) == noon
    assert iso(noon) == "2026-12-31T12:00:00+00:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-13-01",
        "1969-12-31T23:59:59Z",
        "0001-01-01T00:00:00+14:00",
        "9999-01-01",
        "9998-12-31T23:59:59-00:01",
        "9999-12-31T23:59:59-14:00",
        "2026-12-31T00:00:00+99:00",
    ],
)
def test_what_is_no_moment_or_out_of_bounds_is_refused(text: str):
    with pytest.raises(ValueError, match=r"is no time|is not of the years"):
        moment(text)


@given(st.datetimes())
def test_whatever_is_read_can_be_written(given: datetime):
    try:
        seconds = moment(given.isoformat())
    except ValueError:
        assert not 1970 <= given.year <= 9998
        return
    assert moment(iso(seconds)) == seconds


@given(st.floats(-1e15, 1e15))
def test_whatever_is_stored_can_be_written(seconds: float):
    text = iso(seconds)
    assert text >= iso(FIRST)
    assert text <= iso(END)
