"""The order in which deployments are tried."""

from __future__ import annotations

from dataclasses import dataclass

from prime_inference.routing.choose import order


@dataclass
class Known:
    name: str
    load: float


def test_the_least_loaded_comes_first_and_ties_keep_their_order():
    known = [Known("a", 0.5), Known("b", 0.0), Known("c", 0.5), Known("d", 0.2)]
    assert [candidate.name for candidate in order(known)] == ["b", "d", "a", "c"]
