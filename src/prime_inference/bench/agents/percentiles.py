"""Percentiles as AgentX computes them."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], q: float) -> float:
    """The q-th percentile by linear interpolation at k = (n - 1) q / 100.

    InferenceX utils/agentic/aggregation/aggregation_common.py. NaN for no values.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    k = (len(ordered) - 1) * q / 100
    low = math.floor(k)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (k - low)


def mean(values: Iterable[float]) -> float:
    """NaN for no values."""
    listed = list(values)
    return math.fsum(listed) / len(listed) if listed else math.nan
