"""Moments as people write and read them: ISO 8601, in UTC where nothing else is said."""

from __future__ import annotations

from datetime import UTC, datetime

FIRST_YEAR = 1970  # days and microseconds are counted from its beginning
LAST_YEAR = 9998  # there is a year after it in every calendar, for offsets, months and sums
FIRST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC).timestamp()
END = datetime(LAST_YEAR + 1, 1, 1, tzinfo=UTC).timestamp()


def moment(text: str) -> float:
    """Seconds since the epoch. Raises ValueError, also for what is out of bounds."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:50]!r} is no time like 2026-12-31T12:00:00Z") from None
    seconds = given.replace(tzinfo=given.tzinfo or UTC).timestamp()
    if not FIRST <= seconds < END:
        raise ValueError(f"{text!r} is not of the years {FIRST_YEAR} to {LAST_YEAR}")
    return seconds


def iso(seconds: float) -> str:
    """A moment as text; one that is out of bounds is the nearest that is not."""
    return datetime.fromtimestamp(min(max(seconds, FIRST), END), UTC).isoformat()
