"""How fast a deployment answers and how often it fails: the last minute, in fixed memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

SLICES = 6
SLICE_S = 10  # six slices: the last 50 to 60 s
LEAST_S = 0.001
GROWTH = 1.15  # a value is known within 15 %: finer than a hedge or a choice needs
BUCKETS = 96  # from 1 ms to 600 s
REFRESH_S = 1.0  # quantiles are computed at most once a second
HOLD_WEIGHT = 0.1  # of the newest holding time in the running mean

_LOG_GROWTH = math.log(GROWTH)


class LatencyHistogram:
    """Quantiles of durations over a sliding window, in logarithmic buckets."""

    __slots__ = ("_counts", "_fresh_until", "_merged", "_quantiles", "_slice", "_total")

    def __init__(self) -> None:
        self._counts: list[list[int]] = [[]] * SLICES  # buckets once it is used
        self._slice = [-1] * SLICES
        self._merged: list[int] = []
        self._total = 0  # of `_merged`
        self._quantiles: dict[float, float] = {}
        self._fresh_until = -math.inf

    def add(self, seconds: float, now: float) -> None:
        current = int(now / SLICE_S)
        index = current % SLICES
        if self._slice[index] != current:
            self._slice[index] = current
            self._counts[index] = [0] * BUCKETS
        bucket = int(math.log(seconds / LEAST_S) / _LOG_GROWTH) + 1 if seconds > LEAST_S else 0
        self._counts[index][min(bucket, BUCKETS - 1)] += 1

    def quantile(self, q: float, now: float, least_samples: int = 1) -> float | None:
        """Upper edge of the bucket that holds the quantile, in seconds; at most `REFRESH_S` old.

        None with fewer than `least_samples` durations in the window.
        """
        if now >= self._fresh_until:
            self._merge(now)
        if self._total < max(1, least_samples):  # whoever has asked for the same quantile before
            return None
        if q not in self._quantiles:
            self._quantiles[q] = self._edge(math.ceil(q * self._total))
        return self._quantiles[q]

    def _merge(self, now: float) -> None:
        oldest = int(now / SLICE_S) - SLICES
        slices = zip(self._counts, self._slice, strict=True)
        live = [counts for counts, which in slices if counts and which > oldest]
        self._merged = [sum(column) for column in zip(*live, strict=True)]
        self._total = sum(self._merged)
        self._quantiles.clear()
        self._fresh_until = now + REFRESH_S

    def _edge(self, rank: int) -> float:
        seen = 0
        for bucket, count in enumerate(self._merged):
            seen += count
            if seen >= rank:
                return LEAST_S * GROWTH**bucket
        raise AssertionError("a quantile is at most 1")


@dataclass(slots=True)
class HoldingTime:
    """Running mean of how long a slot is held; None before the first one is given back."""

    mean_s: float | None = None

    def add(self, seconds: float) -> None:
        if self.mean_s is None:
            self.mean_s = seconds
        else:
            self.mean_s += HOLD_WEIGHT * (seconds - self.mean_s)
