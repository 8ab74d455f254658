"""Migrations run forward over data, once, whoever starts them."""

from __future__ import annotations

from functools import partial

import pytest

from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import SchemaTooNew, migrate, migrations
from prime_inference.billing.rating import usage_event
from prime_inference.domain import keys as api_keys
from prime_inference.ports.ledger import LedgerUnavailable
from tests.at_once import at_once

from .conftest import DIALECTS, OpenDatabase
from .samples import generation, price


def test_both_databases_have_the_same_migrations():
    names = [[(each.version, each.name) for each in migrations(dialect)] for dialect in DIALECTS]
    assert names[0] == names[1]
    assert [version for version, _ in names[0]] == list(range(1, len(names[0]) + 1))


FIRST_EVENT = """
INSERT INTO usage_event VALUES ('team-a', 'g1', 'usage', 'key1', 'acme/echo-1', 'dc-1',
    'serverless', 'chat/completions', 'complete', {true}, 1, 100, 0, 10, 0, 120000,
    1800000000000000, 1, 2, 1)
"""


def test_books_of_the_first_version_are_sound_at_the_newest(open_database: OpenDatabase):
    database = open_database()
    migrate(database, upto=1)
    with database.transaction() as transaction:
        transaction.rows(statements.NEW_BATCH, source="r", now=1)
        transaction.run(FIRST_EVENT.format(true="1" if database.dialect == "sqlite" else "true"))
        for statement in (
            statements.TRANSFERS_OF_EVENTS,
            statements.DAYS_OF_EVENTS,
            statements.BALANCES_OF_TRANSFERS,
        ):
            transaction.run(statement, batch=1)
    for migration in migrations(database.dialect)[1:]:
        assert migrate(database, upto=migration.version) == migration.version
    ledger = SqlLedger(database)
    assert ledger.verify().sound
    (kept,) = ledger.events("team-a", 10)
    assert (kept.cost, kept.streamed, kept.estimated) == (120_000, True, False)
    ledger.apply("r", [usage_event(generation(id="g2"), price())], 1)
    found = ledger.verify()
    assert found.sound
    assert found.events == 2


def test_a_key_that_was_rotated_before_keeps_its_overlap(open_database: OpenDatabase):
    old, key = api_keys.create("t", name="ci", created_at=1.0)
    new, rotated = api_keys.rotate(key, now=1.5, overlap_seconds=1_800_000_000.25)
    database = open_database()
    migrate(database, upto=2)
    with database.transaction() as transaction:
        transaction.run("INSERT INTO tenant VALUES ('t', 'team', 'T', 't', 1.0)")
        transaction.run(
            "INSERT INTO api_key VALUES (:key_id, 't', :digest, 1.0, 'ci', :last_four, NULL, NULL,"
            " :previous, :until, '[]', '[]', '[]')",
            key_id=key.key_id,
            digest=rotated.digest,
            last_four=rotated.last_four,
            previous=key.digest,
            until=1_800_000_001.75,
        )
        transaction.run(
            "INSERT INTO api_key VALUES ('never', 't', :digest, 1.0, '', '', NULL, NULL, NULL, 0.0,"
            " '[]', '[]', '[]')",
            digest=rotated.digest,
        )
    migrate(database)
    found = {each.key_id: each for each in SqlAccounts(database).load().keys}
    assert found["never"].earlier == ()
    kept = found[key.key_id]
    for text, moment, works in (
        (old, 1_800_000_001.5, True),
        (old, 1_800_000_001.75, False),
        (new, 1_800_000_001.75, True),
    ):
        assert api_keys.verify(text, kept, moment) is works


def test_processes_that_start_together_migrate_once(open_database: OpenDatabase):
    databases = [open_database() for _ in range(4)]
    failures: list[Exception] = []

    def start(number: int) -> None:
        try:
            migrate(databases[number])
        except Exception as error:
            failures.append(error)

    at_once([partial(start, number) for number in range(4)])
    assert not failures
    with databases[0].snapshot() as transaction:
        rows = transaction.rows("SELECT version FROM schema_version ORDER BY version")
    assert [version for (version,) in rows] == list(
        range(1, len(migrations(databases[0].dialect)) + 1)
    )


def test_tables_of_a_later_release_are_left_alone(open_database: OpenDatabase):
    database = open_database()
    migrate(database)
    with database.transaction() as transaction:
        transaction.run("INSERT INTO schema_version VALUES (9999)")
    with pytest.raises(SchemaTooNew, match="9999"):
        migrate(database)


def test_a_database_without_tables_is_unavailable(open_database: OpenDatabase):
    with pytest.raises(LedgerUnavailable):
        SqlLedger(open_database()).balance("revenue")
