"""Killed at any moment, each generation is accounted once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sqlite.database import SqliteDatabase
from tests.postgres_server import PostgresServer

from .campaign import Campaign, campaign
from .defects import NOTICED
from .traffic import PAID, TENANTS, Request
from .worker import open_database

CRASHES = 20  # `make crash` takes 1,000
PLACES = 30  # of the steps from admission to the ledger


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_at(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = str(tmp_path / "ledger.db")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        where = server.database()
    database = open_database(where)
    migrate(database)
    database.close()
    return where


def test_a_crash_at_any_step_loses_and_repeats_nothing(tmp_path: Path):
    where = tmp_path / "ledger.db"
    database = SqliteDatabase(where, "normal")
    migrate(database)
    database.close()
    with campaign(tmp_path, str(where)) as lives:
        assert not lives.live(2, ship_every=1)
        steps = lives.steps
        assert steps > 50  # the hook sees something
        stride = max(1, steps // PLACES)
        for step in range(1, steps, stride):
            lives.live(2, crash_at=step, ship_every=1)
        found = lives.audit()
    assert found.crashes >= PLACES // 2  # an empty outbox takes fewer steps than the first one did
    assert found.whole >= PLACES // 4


def test_random_crashes_lose_and_repeat_nothing(tmp_path: Path, ledger_at: str):
    random = Random(4)
    with campaign(tmp_path, ledger_at) as lives:
        assert not lives.live(10)
        ten_generations = lives.steps
        while lives.crashes < CRASHES:
            lives.live(100, crash_at=random.randint(1, 2 * ten_generations))
        found = lives.audit()
    assert found.crashes == CRASHES
    assert found.whole > CRASHES


def test_each_pool_has_its_share_of_what_is_crashed():
    requests = [Request(number, 1) for number in range(1, 106)]
    assert {(each.pool, each.outcome) for each in requests if each.tenant == TENANTS[0]} == {
        (pool, outcome) for pool in PAID for outcome in ("complete", "cancelled")
    }


@pytest.mark.parametrize("plant", NOTICED, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_noticed(plant: Any, tmp_path: Path):
    where = str(tmp_path / "ledger.db")
    database = open_database(where)
    migrate(database)
    database.close()
    with campaign(tmp_path, where, plant.__name__) as lives:  # noqa: SIM117
        with pytest.raises(AssertionError, match=NOTICED[plant]):
            crash_and_audit(lives)


def crash_and_audit(lives: Campaign) -> None:
    """Most defects need no crash to be noticed."""
    random = Random(4)
    assert not lives.live(40)
    steps = lives.steps
    lives.audit()
    while lives.crashes < CRASHES:
        lives.live(100, crash_at=random.randint(1, steps))
    lives.audit()
