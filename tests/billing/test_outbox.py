"""The outbox and the shipper: at least once from the one, exactly once in the ledger."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.adapters.sqlite.outbox import SqliteOutbox
from prime_inference.billing.rating import usage_event
from prime_inference.billing.shipper import BATCH, Shipper
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import Applied, LedgerUnavailable
from prime_inference.ports.outbox import OutboxUnavailable

from .samples import generation, price

APPEND_AND_DIE = """
import os, pathlib, sys
from prime_inference.adapters.sqlite.outbox import SqliteOutbox
from tests.billing.test_outbox import events
SqliteOutbox(pathlib.Path(sys.argv[1])).append(events(3))
os.kill(os.getpid(), 9)
"""


def events(count: int) -> list[UsageEvent]:
    return [usage_event(generation(id=f"g{n}"), price()) for n in range(count)]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[SqliteOutbox]:
    outbox = SqliteOutbox(tmp_path / "outbox.db")
    yield outbox
    outbox.close()


@pytest.fixture
def books(tmp_path: Path) -> Iterator[SqlLedger]:
    database = SqliteDatabase(tmp_path / "ledger.db", "normal")
    migrate(database)
    yield SqlLedger(database)
    database.close()


class LosesAnswers(SqlLedger):
    """Applies, and then says that it could not: what a cut connection looks like."""

    losing = True

    def apply(self, source: str, events: Sequence[UsageEvent], now: int) -> Applied:
        applied = super().apply(source, events, now)
        if self.losing:
            raise LedgerUnavailable("the answer was lost")
        return applied


def test_events_come_out_as_they_went_in_and_in_order(outbox: SqliteOutbox):
    sent = events(5)
    outbox.append(sent[:1])
    outbox.append(sent[1:])
    assert [event for _, event in outbox.oldest(3)] == sent[:3]
    outbox.delete(outbox.oldest(3)[-1][0])
    assert [event for _, event in outbox.oldest(9)] == sent[3:]
    assert outbox.count() == 2


def test_places_are_never_used_again(outbox: SqliteOutbox):
    outbox.append(events(2))
    last = outbox.oldest(9)[-1][0]
    outbox.delete(last)
    outbox.append(events(1))
    assert outbox.oldest(1)[0][0] > last


def test_what_was_appended_survives_the_death_of_its_process(tmp_path: Path):
    path = tmp_path / "outbox.db"
    child = subprocess.run([sys.executable, "-c", APPEND_AND_DIE, path], check=False)
    assert child.returncode == -9
    outbox = SqliteOutbox(path)
    assert [event for _, event in outbox.oldest(9)] == events(3)
    outbox.close()


def test_the_outbox_can_be_read_by_its_owner_only(tmp_path: Path, outbox: SqliteOutbox):
    outbox.append(events(1))
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_outbox_that_cannot_be_written_says_so_and_keeps_nothing(
    tmp_path: Path, outbox: SqliteOutbox
):
    other = sqlite3.connect(tmp_path / "outbox.db")
    other.execute("CREATE TRIGGER full BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'x'); END")
    other.close()
    for count in (1, 3):
        with pytest.raises(OutboxUnavailable):
            outbox.append(events(count))
    assert outbox.count() == 0


def test_the_shipper_drains_the_outbox_into_the_ledger(outbox: SqliteOutbox, books: SqlLedger):
    sent = events(BATCH + 5)
    outbox.append(sent)
    shipper = Shipper(outbox, books, "r1")
    shipper.start()
    shipper.stop()
    assert (outbox.count(), shipper.waiting, shipper.failing) == (0, 0, False)
    found = books.verify()
    assert found.sound
    assert found.events == len(sent)
    assert found.revenue == sum(event.cost for event in sent)


def test_an_answer_that_is_lost_is_asked_for_again_and_counts_once(
    outbox: SqliteOutbox, tmp_path: Path
):
    database = SqliteDatabase(tmp_path / "ledger.db", "normal")
    migrate(database)
    books = LosesAnswers(database)
    outbox.append(events(3))
    shipper = Shipper(outbox, books, "r1")
    for _ in range(3):
        with pytest.raises(LedgerUnavailable):
            shipper.ship_once()
    assert outbox.count() == 3
    books.losing = False
    assert shipper.ship_once() == 3
    assert outbox.count() == 0
    assert books.verify().events == 3
    assert books.verify().sound
    database.close()


def test_while_the_ledger_is_away_events_wait_and_then_go(outbox: SqliteOutbox, tmp_path: Path):
    database = SqliteDatabase(tmp_path / "late.db", "normal")
    books = SqlLedger(database)  # no tables yet
    outbox.append(events(2))
    shipper = Shipper(outbox, books, "r1")
    shipper.start()
    deadline = time.monotonic() + 10
    while not shipper.failing:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert shipper.waiting == 2
    migrate(database)
    shipper.stop()
    assert books.verify().events == 2
    database.close()
