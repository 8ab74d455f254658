"""SQLite and Postgres for conformance suites, each empty and with its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prime_inference.adapters.postgres.database import PostgresDatabase
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sqlite.database import SqliteDatabase
from tests.postgres_server import PostgresServer

OpenDatabase = Callable[[], Database]
DIALECTS = ("sqlite", "postgres")


@pytest.fixture(params=DIALECTS)
def open_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenDatabase]:
    """Opens connections to one empty database."""
    opened: list[Database] = []
    url = ""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.database()

    def open_it() -> Database:
        database: Database
        if url:
            database = PostgresDatabase(url)
        else:
            database = SqliteDatabase(tmp_path / "ledger.db", "normal")
        opened.append(database)
        return database

    yield open_it
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: OpenDatabase) -> Database:
    database = open_database()
    migrate(database)
    return database
