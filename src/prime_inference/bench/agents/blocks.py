"""Ids of an input's blocks, kept as runs of consecutive ids, and what a play has sent of them.

A session of a hundred turns of 142K tokens names 220,000 blocks; as runs it is a few pairs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Runs = tuple[tuple[int, int], ...]
"""(first id, how many), in order."""


def to_runs(ids: Iterable[int]) -> Runs:
    """Runs of consecutive ids."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and runs[-1][0] + runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return tuple((first, count) for first, count in runs)


def ids(runs: Runs) -> Iterator[int]:
    """The ids again."""
    for first, count in runs:
        yield from range(first, first + count)


class SeenBlocks:
    """The blocks that one play has sent, as a prefix cache without limit would keep them.

    Kept as disjoint intervals, ordered, none touching the next.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def hit(self, runs: Runs) -> int:
        """How many leading blocks are here already."""
        count = 0
        for first, length in runs:
            at = bisect_right(self._starts, first) - 1
            known = min(length, self._ends[at] - first) if at >= 0 else 0
            count += max(0, known)
            if known < length:
                break
        return count

    def add(self, runs: Runs) -> None:
        for first, length in runs:
            self._add(first, first + length)

    def _add(self, start: int, end: int) -> None:
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
