"""Configuration that cannot be wrong unnoticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prime_inference.reliability.settings import BreakerSettings, LeaseSettings, RetrySettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: LeaseSettings(ttl_s=0), "lease.ttl_s is above 0"),
        (lambda: BreakerSettings(open_s=60), r"breaker.open_s is in \(0, open_cap_s\]"),
        (lambda: RetrySettings(ratio=2), r"retry.ratio is in \[0, 1\]"),
    ],
)
def test_what_is_wrong_is_named(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()
