"""When to ask a second deployment because the first one is late."""

from __future__ import annotations

from prime_inference.reliability.settings import RetrySettings
from prime_inference.reliability.statistics import LatencyHistogram


def hedge_after(first_token: LatencyHistogram, now: float, settings: RetrySettings) -> float | None:
    """Seconds after which a first token is late by the deployment's own p99.

    None if too few answers were seen to know. Slow is not dead: whoever hedges lets the first
    attempt run and takes what comes first.
    """
    p99 = first_token.quantile(0.99, now, settings.hedge_least_samples)
    return None if p99 is None else max(p99, settings.hedge_least_s)
