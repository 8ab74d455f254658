"""Migrations run forward over data, once, whoever starts them."""

from __future__ import annotations

import threading

import pytest

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import SchemaTooNew, migrate, migrations
from prime_inference.billing.rating import usage_event
from prime_inference.ports.ledger import LedgerUnavailable

from .conftest import DIALECTS, OpenDatabase
from .samples import generation, price


def test_both_databases_have_the_same_migrations():
    names = [[(each.version, each.name) for each in migrations(dialect)] for dialect in DIALECTS]
    assert names[0] == names[1]
    assert [version for version, _ in names[0]] == list(range(1, len(names[0]) + 1))


def test_data_of_every_version_survives_the_way_to_the_newest(open_database: OpenDatabase):
    database = open_database()
    ledger = SqlLedger(database)
    for migration in migrations(database.dialect):
        assert migrate(database, upto=migration.version) == migration.version
        ledger.apply("r", [usage_event(generation(id=f"g{migration.version}"), price())], 1)
    found = ledger.verify()
    assert found.sound
    assert found.events == len(migrations(database.dialect))


def test_processes_that_start_together_migrate_once(open_database: OpenDatabase):
    databases = [open_database() for _ in range(4)]
    failures: list[Exception] = []

    def start(number: int) -> None:
        try:
            migrate(databases[number])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
