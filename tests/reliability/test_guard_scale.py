"""What a large fleet costs a guard, in calls and bytes: both grow as the fleet does."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from prime_inference.domain.models import Deployment
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.settings import Settings
from tests.reliability.fleet import Clock, deployment

BYTES_EACH = 4_000  # of one that was never used: its windows are made when something is in them


def fleet_of(count: int) -> list[Deployment]:
    return [deployment(f"d{at}", model=f"m{at % 10}") for at in range(count)]


def new_guard(*fleet: Deployment) -> Guard:
    guard = Guard("r", Settings(), Clock(), Random(1))
    guard.configure(fleet)
    return guard


def calls_of(work: Callable[[], object]) -> int:
    """Calls that `work` makes, of Python's functions and of built-in ones."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def first(count: int) -> int:
    guard, fleet = new_guard(), fleet_of(count)
    return calls_of(lambda: guard.configure(fleet))


def again(count: int) -> int:
    fleet = fleet_of(count)
    guard = new_guard(*fleet)
    return calls_of(lambda: guard.configure(fleet))


def all_gone(count: int) -> int:
    guard = new_guard(*fleet_of(count))
    return calls_of(lambda: guard.configure([]))


def all_replaced(count: int) -> int:
    guard = new_guard(*fleet_of(count))
    new = [deployment(f"n{at}", model=f"m{at % 10}") for at in range(count)]
    return calls_of(lambda: guard.configure(new))


@pytest.mark.parametrize("change", [first, again, all_gone, all_replaced])
def test_twice_the_fleet_is_twice_the_work(change: Callable[[int], int]) -> None:
    assert change(400) < 2.2 * change(200)


def test_a_deployment_that_nobody_has_used_takes_little_memory() -> None:
    fleet = fleet_of(200)
    tracemalloc.start()
    try:
        guard = new_guard(*fleet)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(guard.status()) == 200
    assert used < 200 * BYTES_EACH
