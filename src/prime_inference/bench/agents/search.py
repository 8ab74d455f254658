"""The largest number of sessions that holds a target."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

Holds = Callable[[int], Awaitable[bool]]
"""Whether a number of sessions holds the target, in the median of its repeats."""


RESOLUTION = 0.03  # of the number found: points of one setting differ by more from seed to seed


class Search(msgspec.Struct, frozen=True):
    """`best` is the largest number that held, 0 if none did; `tried` is every answer, in
    order; `bounded` is False if the highest number allowed held as well."""

    best: int
    tried: tuple[tuple[int, bool], ...]
    bounded: bool


async def find_concurrency(holds: Holds, *, start: int, highest: int) -> Search:
    """Double from `start` until one fails, then bisect to within `RESOLUTION`."""
    tried: list[tuple[int, bool]] = []

    async def ask(number: int) -> bool:
        held = await holds(number)
        tried.append((number, held))
        return held

    low, number = 0, min(start, highest)
    while await ask(number):
        low = number
        if number == highest:
            return Search(low, tuple(tried), bounded=False)
        number = min(highest, number * 2)
    high = number
    while high - low > max(1, RESOLUTION * low):
        middle = (low + high) // 2
        if await ask(middle):
            low = middle
        else:
            high = middle
    return Search(low, tuple(tried), bounded=True)
