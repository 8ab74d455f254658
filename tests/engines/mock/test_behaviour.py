import dataclasses

import pytest

from prime_inference.engines.mock import behaviour as module
from prime_inference.engines.mock.behaviour import (
    CLAUSES,
    SCENARIOS,
    Behaviour,
    Occasions,
    UnknownBehaviour,
)


def test_clauses_are_joined_by_dots():
    parsed = Behaviour.parse("status-429.retry-after-2.first-1")
    assert parsed == Behaviour(status=429, retry_after=2, first=1)


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("20s", 20.0), ("2m", 120.0)])
def test_times_have_a_unit(text, seconds):
    assert Behaviour.parse(f"slow-first-{text}").slow_first == seconds


@pytest.mark.parametrize(
    "text", ["", "cut-after", "cut-after-x", "slow-first-20", "silence-3", "cut-after-5..crlf"]
)
def test_what_is_no_clause_is_refused(text):
    with pytest.raises(UnknownBehaviour):
        Behaviour.parse(text)


def test_a_slip_of_the_pen_is_told_the_nearest_clause():
    with pytest.raises(UnknownBehaviour, match="cut-after"):
        Behaviour.parse("cut-aftre-5")


def test_every_clause_is_documented():
    words = set((module.__doc__ or "").replace(",", " ").split())
    documented = {word.removesuffix("-N").removesuffix("-T") for word in words}
    assert set(CLAUSES) <= documented
    assert len(CLAUSES) == len(dataclasses.fields(Behaviour))


@pytest.mark.parametrize("spec", SCENARIOS.values())
def test_every_scenario_is_a_behaviour(spec):
    assert Behaviour.parse(spec) != Behaviour()


def applied(text: str, times: list[float]) -> list[bool]:
    occasions = Occasions()
    return [occasions.applies(text, Behaviour.parse(text), now) for now in times]


def test_first_applies_to_the_first_requests_only():
    assert applied("reset.first-2", [0, 1, 2, 3]) == [True, True, False, False]


def test_every_applies_to_each_nth_request():
    assert applied("reset.every-3", [0] * 6) == [False, False, True, False, False, True]


def test_for_applies_from_the_first_request_on():
    assert applied("status-503.for-60s", [100, 159.9, 160, 300]) == [True, True, False, False]


def test_behaviours_count_their_requests_apart():
    occasions = Occasions()
    one, two = Behaviour.parse("reset.first-1"), Behaviour.parse("close.first-1")
    assert occasions.applies("one", one, 0)
    assert occasions.applies("two", two, 0)
    assert not occasions.applies("one", one, 0)
    occasions.forget()
    assert occasions.applies("one", one, 0)
