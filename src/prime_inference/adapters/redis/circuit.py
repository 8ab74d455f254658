"""A breaker around the store itself: what is away is not asked with every request."""

from __future__ import annotations

FAILURES = 3  # in a row; one is a lost packet
PAUSE_S = 1.0  # a store that is back is noticed within a second


class StoreCircuit:
    """After `FAILURES` failures in a row, one try per `PAUSE_S`. Time is passed in."""

    def __init__(self) -> None:
        self._failures = 0
        self._closed_until = 0.0

    def allows(self, now: float) -> bool:
        """Whether to make a call now. A True after a pause stands for the one try."""
        if self._failures < FAILURES:
            return True
        if now < self._closed_until:
            return False
        self._closed_until = now + PAUSE_S
        return True

    def answered(self) -> None:
        self._failures = 0

    def failed(self, now: float) -> None:
        self._failures += 1
        self._closed_until = now + PAUSE_S
