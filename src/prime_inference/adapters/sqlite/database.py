"""A SQLite database in WAL mode."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Literal

from prime_inference.adapters.sql.database import Row

BUSY_S = 10.0  # another process writes a batch in milliseconds; a backup takes longer

Synchronous = Literal["normal", "full"]


class SqliteTransaction:
    """Implements `adapters.sql.database.Transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, **parameters: object) -> list[Row]:
        return self._connection.execute(statement, parameters).fetchall()

    def run(self, statement: str, **parameters: object) -> int:
        return self._connection.execute(statement, parameters).rowcount

    def insert_new(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        marks = ", ".join("?" * len(columns))
        statement = (
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        )
        before = self._connection.total_changes
        self._connection.executemany(statement, rows)
        return self._connection.total_changes - before

    def script(self, text: str) -> None:
        """Like sqlite3's `executescript`, but without its COMMIT at the start."""
        statement = ""
        for line in text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self._connection.execute(statement)
                statement = ""


class SqliteDatabase:
    """Implements `adapters.sql.database.Database`.

    `synchronous` "full" waits for the disk at every commit; "normal" survives the death of
    the process, and a power cut without the last commits.
    """

    dialect = "sqlite"
    unavailable: tuple[type[Exception], ...] = (sqlite3.Error,)
    refused: tuple[type[Exception], ...] = (sqlite3.IntegrityError, sqlite3.DataError)

    def __init__(self, path: Path, synchronous: Synchronous = "full") -> None:
        self._lock = threading.Lock()
        self.connection = connect(path, synchronous)

    def transaction(self) -> AbstractContextManager[SqliteTransaction]:
        return self._between("BEGIN IMMEDIATE")

    def snapshot(self) -> AbstractContextManager[SqliteTransaction]:
        return self._between("BEGIN DEFERRED")

    @contextmanager
    def _between(self, begin: str) -> Iterator[SqliteTransaction]:
        with self._lock:
            self.connection.execute(begin)
            try:
                yield SqliteTransaction(self.connection)
                self.connection.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def close(self) -> None:
        with self._lock:
            self.connection.close()


def connect(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread. The file is its owner's only."""
    path.touch(mode=0o600)
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA foreign_keys = on")
    return connection
