"""Outcomes of the last seconds, in buckets of one second."""

from __future__ import annotations

NEVER = -(1 << 62)  # a second in no window, wherever a clock begins


class OutcomeWindow:
    """Counts of the last `seconds` seconds; memory does not grow with traffic."""

    __slots__ = ("_answered", "_failed", "_second", "_seconds")

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._answered = [0] * seconds
        self._failed = [0] * seconds
        self._second = [NEVER] * seconds  # which second a bucket holds

    def answered(self, now: float) -> None:
        self._answered[self._bucket(now)] += 1

    def failed(self, now: float) -> None:
        self._failed[self._bucket(now)] += 1

    def totals(self, now: float) -> tuple[int, int]:
        """(answered, failed) within the window that ends now."""
        oldest = int(now) - self._seconds
        live = [i for i, second in enumerate(self._second) if second > oldest]
        return sum(self._answered[i] for i in live), sum(self._failed[i] for i in live)

    def clear(self) -> None:
        self._second = [NEVER] * self._seconds

    def _bucket(self, now: float) -> int:
        second = int(now)
        bucket = second % self._seconds
        if self._second[bucket] != second:
            self._second[bucket] = second
            self._answered[bucket] = self._failed[bucket] = 0
        return bucket
