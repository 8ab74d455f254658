"""Active health: what is said counts soon, silence late, and slow is not dead."""

from __future__ import annotations

import pytest

from prime_inference.reliability.health import Health, Readiness

READY, SILENT = Readiness.READY, Readiness.SILENT
TELLING = [Readiness.NOT_READY, Readiness.UNREACHABLE]


@pytest.mark.parametrize("telling", TELLING)
def test_what_an_engine_says_of_itself_counts_the_second_time(telling: Readiness) -> None:
    health = Health()
    assert not health.looked(telling, 0)
    assert health.healthy
    assert health.looked(telling, 0)
    assert not health.healthy
    assert not health.looked(telling, 0)  # it was unhealthy before


def test_one_look_that_finds_it_ready_is_enough() -> None:
    health = Health()
    for _ in range(5):
        health.looked(Readiness.UNREACHABLE, 0)
    assert health.looked(READY, 0)
    assert health.healthy
    health.looked(Readiness.NOT_READY, 0)
    assert health.healthy  # the earlier ones are forgotten


def test_silence_counts_the_third_time() -> None:
    health = Health()
    assert [health.looked(SILENT, 0) for _ in range(4)] == [False, False, True, False]


def test_an_engine_that_answers_requests_is_slow_and_not_dead() -> None:
    health = Health()
    for answered in range(1, 20):
        health.looked(SILENT, answered)
    assert health.healthy
    health.looked(SILENT, 19)
    health.looked(SILENT, 19)
    assert health.healthy
    health.looked(SILENT, 19)
    assert not health.healthy


def test_an_engine_that_says_it_is_not_ready_and_answers_drains_and_is_not_down() -> None:
    health = Health()
    for answered in range(1, 4):
        health.looked(Readiness.NOT_READY, answered)
    assert (health.healthy, health.down) == (False, False)
    health.looked(Readiness.NOT_READY, 3)
    assert health.down  # it has stopped answering
    health.looked(Readiness.NOT_READY, 4)
    assert not health.down
    health.looked(READY, 4)
    assert (health.healthy, health.down) == (True, False)


@pytest.mark.parametrize("readiness", [SILENT, *TELLING])
def test_down_is_never_said_before_unhealthy(readiness: Readiness) -> None:
    health = Health()
    while health.healthy:
        assert not health.down
        health.looked(readiness, 0)
    assert health.down
