"""Configuration that cannot be wrong unnoticed."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.domain.sharing import Sharing
from prime_inference.reliability.settings import BreakerSettings, Settings


def test_what_is_not_given_has_its_default() -> None:
    assert Settings.from_mapping({}) == Settings()
    changed = Settings.from_mapping({"lease": {"ttl_s": 6, "sharing": "static"}})
    assert changed.lease.ttl_s == 6.0
    assert changed.lease.sharing is Sharing.STATIC
    assert changed.breaker == BreakerSettings()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"braker": {}}, "reliability has no setting 'braker'. Did you mean breaker?"),
        ({"lease": {"tll_s": 1}}, "lease has no setting 'tll_s'. Did you mean ttl_s?"),
        ({"lease": {"ttl_s": "10"}}, "lease.ttl_s is not a number of the right kind: '10'"),
        ({"breaker": {"tickets": 1.5}}, "breaker.tickets is not a number of the right kind: 1.5"),
        ({"breaker": {"tickets": True}}, "breaker.tickets is not a number"),
        ({"lease": {"sharing": "fare"}}, "lease.sharing is one of static, proportional_share"),
        ({"lease": {"ttl_s": 0}}, "lease.ttl_s is above 0"),
        ({"breaker": {"open_s": 60}}, r"breaker.open_s is in \(0, open_cap_s\]"),
        ({"retry": {"ratio": 2}}, r"retry.ratio is in \[0, 1\]"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings.from_mapping(given)
