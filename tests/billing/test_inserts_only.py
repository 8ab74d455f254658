"""Tables that take inserts only: whatever is tried, the rows that are there stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.database import Database, Row
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.billing.rating import usage_event
from prime_inference.domain.accounts import Tenant

from .conftest import OpenDatabase
from .samples import generation, price

KEYS = {
    "batch": ("id",),
    "usage_event": ("tenant", "generation", "kind"),
    "transfer": ("tenant", "reference", "kind"),
    "price": ("model", "version"),
    "audit": ("place",),
}
OTHER_VALUE = {
    "batch": ("source", "'x'"),
    "usage_event": ("cost", "7"),
    "transfer": ("amount", "7"),
    "price": ("prompt", "7"),
    "audit": ("detail", "'x'"),
}
OTHER_KEY = {
    "usage_event": ("generation", "'other'"),
    "transfer": ("reference", "'other'"),
    "price": ("version", "99"),
}
"""Of tables whose primary key is not the rowid."""

REFUSED = "inserts only|rowid below 1"


def write(database: Database, number: int) -> None:
    """A row of each table, as the product writes it."""
    SqlLedger(database).apply("r1", [usage_event(generation(id=f"g{number}"), price())], 5)
    accounts = SqlAccounts(database)
    accounts.add_tenant(Tenant(f"t{number}", "team", "T", f"t{number}", 1.0), "admin")
    accounts.add_price(price(version=number), "admin", 1.0)


def rows(database: Database, table: str) -> list[Row]:
    with database.snapshot() as transaction:
        return transaction.rows(f"SELECT * FROM {table} ORDER BY {', '.join(KEYS[table])}")


def columns(database: Database, table: str) -> list[str]:
    statement = (
        "SELECT name FROM pragma_table_info(:name)"
        if database.dialect == "sqlite"
        else "SELECT column_name FROM information_schema.columns"
        " WHERE table_name = :name AND table_schema = 'public' ORDER BY ordinal_position"
    )
    with database.snapshot() as transaction:
        return [name for (name,) in transaction.rows(statement, name=table)]


def attempts(database: Database, table: str) -> Iterator[str]:
    """Every way to change, remove or replace a row that the database has."""
    names = columns(database, table)
    column, value = OTHER_VALUE[table]
    listed = ", ".join(names)
    changed = ", ".join(value if name == column else name for name in names)
    where = ", ".join(KEYS[table])
    yield f"DELETE FROM {table}"
    yield f"UPDATE {table} SET {column} = {value}"
    upsert = f"ON CONFLICT ({where}) DO UPDATE SET {column} = {value}"
    if database.dialect == "postgres":
        own = "OVERRIDING SYSTEM VALUE" if table == "batch" else ""
        yield f"TRUNCATE {table} CASCADE"
        yield f"INSERT INTO {table} ({listed}) {own} SELECT {listed} FROM {table} {upsert}"
        for action in (f"UPDATE SET {column} = {value}", "DELETE"):
            yield f"MERGE INTO {table} USING (SELECT 1) AS one ON true WHEN MATCHED THEN {action}"
        return
    yield f"UPDATE OR REPLACE {table} SET {column} = {value}"
    yield f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {table} WHERE true {upsert}"
    yield f"INSERT OR REPLACE INTO {table} ({listed}) SELECT {changed} FROM {table}"
    yield f"REPLACE INTO {table} ({listed}) SELECT {changed} FROM {table}"
    if table in OTHER_KEY:
        part, other = OTHER_KEY[table]
        moved = ", ".join(other if name == part else name for name in names)
        first = f"{moved} FROM {table} LIMIT 1"
        yield f"INSERT OR REPLACE INTO {table} (rowid, {listed}) SELECT rowid, {first}"
        yield f"INSERT INTO {table} (rowid, {listed}) SELECT -1, {first}"
        yield f"INSERT INTO {table} (rowid, {listed}) SELECT -2, {first}"
    else:
        first = ", ".join("-1" if name == KEYS[table][0] else name for name in names)
        yield f"INSERT INTO {table} ({listed}) SELECT {first} FROM {table} LIMIT 1"


def attempt(database: Database, statement: str) -> None:
    """It is refused, or does nothing."""
    refused = ""
    try:
        with database.transaction() as transaction:
            transaction.run(statement)
    except database.unavailable as error:
        refused = str(error)
    assert not refused or re.search(REFUSED, refused), statement


def test_the_tables_are_those_whose_rows_stand(database: Database):
    statement = (
        "SELECT tbl_name FROM sqlite_master WHERE type = 'trigger' AND name GLOB '*_is_kept'"
        if database.dialect == "sqlite"
        else "SELECT DISTINCT event_object_table FROM information_schema.triggers"
    )
    with database.snapshot() as transaction:
        assert {name for (name,) in transaction.rows(statement)} == set(KEYS)


@pytest.mark.parametrize("table", KEYS)
def test_no_row_is_changed_removed_or_replaced(database: Database, table: str):
    write(database, 1)
    write(database, 2)
    before = rows(database, table)
    assert len(before) >= 2
    switches = ("on", "off") if database.dialect == "sqlite" else ("",)
    for switch in switches:
        if switch:
            with database.snapshot() as transaction:
                transaction.rows(f"PRAGMA recursive_triggers = {switch}")
        for statement in attempts(database, table):
            attempt(database, statement)
            assert rows(database, table) == before, statement
    write(database, 3)
    assert rows(database, table)[: len(before)] == before
    assert len(rows(database, table)) > len(before)
    assert SqlLedger(database).verify().sound


def test_a_database_of_an_earlier_release_is_protected_as_well(open_database: OpenDatabase):
    database = open_database()
    migrate(database, upto=2)
    with database.transaction() as transaction:
        transaction.run("INSERT INTO audit VALUES (1, 1, 'a', 'b', 'c', 'd', 'e', 'f')")
        transaction.run("INSERT INTO price VALUES ('m', 1, 0.0, 1, 1, 1, 1, 0, 0)")
    migrate(database)
    for table in ("audit", "price"):
        before = rows(database, table)
        for statement in attempts(database, table):
            attempt(database, statement)
            assert rows(database, table) == before, statement
