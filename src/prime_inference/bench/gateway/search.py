"""The largest number that passes a test, when every try is dear and the answer is noisy."""

from __future__ import annotations

from collections.abc import Callable

FINENESS = 0.1  # a tenth: finer than the difference between two rounds
TRIES = 2  # a number has failed when it failed twice: one stall may be the machine's


def largest(passes: Callable[[int], bool], start: int, limit: int) -> int:
    """Double from `start` while it passes, then halve the gap to what failed.

    0 if not even one passes; `limit` if nothing up to it fails.
    """

    def holds(number: int) -> bool:
        return any(passes(number) for _ in range(TRIES))

    good, bad = 0, limit + 1
    number = start
    while number < bad:
        if not holds(number):
            bad = number
            break
        good = number
        if good == limit:
            return limit
        number = min(2 * number, limit)
    while bad - good > max(1, int(good * FINENESS)):
        middle = (good + bad) // 2
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good
