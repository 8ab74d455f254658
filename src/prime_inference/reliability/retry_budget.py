"""How many retries and hedges a model may have: a share of its traffic, and a floor.

The shape is Finagle's RetryBudget (a window instead of a leaking bucket: exact, and as small).
"""

from __future__ import annotations

from prime_inference.reliability.settings import RetrySettings


class RetryBudget:
    """Retries and hedges draw from one budget; requests fill it. Time is passed in."""

    __slots__ = ("_floor", "_ratio", "_requests", "_second", "_seconds", "_spent")

    def __init__(self, settings: RetrySettings) -> None:
        self._seconds = settings.window_s
        self._ratio = settings.ratio
        self._floor = settings.floor_per_s * settings.window_s
        self._requests = [0] * self._seconds
        self._spent = [0] * self._seconds
        self._second = [-1] * self._seconds

    def request(self, now: float) -> None:
        """A request began."""
        self._requests[self._bucket(now)] += 1

    def balance(self, now: float) -> float:
        """Attempts that may still be added now."""
        oldest = int(now) - self._seconds
        live = [i for i, second in enumerate(self._second) if second > oldest]
        filled = self._floor + self._ratio * sum(self._requests[i] for i in live)
        return filled - sum(self._spent[i] for i in live)

    def spend(self, now: float) -> bool:
        """Take one attempt, if there is one left."""
        if self.balance(now) < 1:
            return False
        self._spent[self._bucket(now)] += 1
        return True

    def _bucket(self, now: float) -> int:
        second = int(now)
        bucket = second % self._seconds
        if self._second[bucket] != second:
            self._second[bucket] = second
            self._requests[bucket] = self._spent[bucket] = 0
        return bucket
