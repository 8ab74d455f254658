"""One connection to Postgres."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import sql

from prime_inference.adapters.sql.database import Row

CONNECT_S = 5  # within a datacenter a connection takes milliseconds
STATEMENT_MS = 60_000  # a batch takes milliseconds; `verify` has no limit

PARAMETER = re.compile(r"(?<![:\w]):(\w+)")


class PostgresTransaction:
    """Implements `adapters.sql.database.Transaction`."""

    def __init__(self, connection: psycopg.Connection[Row], staged: set[str]) -> None:
        self._connection = connection
        self._staged = staged  # tables that have a staging table in this session

    def rows(self, statement: str, **parameters: object) -> list[Row]:
        return self._connection.execute(_translated(statement), parameters).fetchall()

    def run(self, statement: str, **parameters: object) -> int:
        return self._connection.execute(_translated(statement), parameters).rowcount

    def insert_new(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """COPY into a table of the session, then insert from there: the fastest way there is."""
        staging = f"new_{table}"
        if table not in self._staged:
            self._connection.execute(
                _sql(f"CREATE TEMP TABLE IF NOT EXISTS {staging} (LIKE {table})")
            )
            self._staged.add(table)
        names = ", ".join(columns)
        with self._connection.cursor() as cursor:
            with cursor.copy(_sql(f"COPY {staging} ({names}) FROM STDIN")) as copy:
                for row in rows:
                    copy.write_row(row)
            cursor.execute(
                _sql(
                    f"INSERT INTO {table} ({names}) SELECT {names} FROM {staging}"
                    " ON CONFLICT DO NOTHING"
                )
            )
            inserted = cursor.rowcount
            cursor.execute(_sql(f"TRUNCATE {staging}"))
        return inserted

    def script(self, text: str) -> None:
        self._connection.execute(_sql(text))


class PostgresDatabase:
    """Implements `adapters.sql.database.Database`. A connection that broke is made anew."""

    dialect = "postgres"
    unavailable: tuple[type[Exception], ...] = (psycopg.Error,)
    refused: tuple[type[Exception], ...] = (psycopg.IntegrityError, psycopg.DataError)

    def __init__(self, url: str, statement_ms: int = STATEMENT_MS) -> None:
        """`statement_ms` ends a statement that takes longer; 0: none."""
        self._url = url
        self._statement_ms = statement_ms
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Row] | None = None
        self._staged: set[str] = set()

    @contextmanager
    def transaction(self) -> Iterator[PostgresTransaction]:
        with self._lock:
            connection = self._connected()
            try:
                with connection.transaction():
                    yield PostgresTransaction(connection, self._staged)
            except BaseException:
                self._staged.clear()  # a staging table made in this transaction is gone
                raise

    @contextmanager
    def snapshot(self) -> Iterator[PostgresTransaction]:
        with self.transaction() as transaction:
            transaction.script("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield transaction

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._connection.closed:
            self._staged.clear()
            with suppress(psycopg.Error):
                if self._connection is not None:
                    self._connection.close()
            options = f"-c statement_timeout={self._statement_ms} -c client_min_messages=warning"
            try:
                self._connection = psycopg.connect(
                    self._url, autocommit=True, connect_timeout=CONNECT_S, options=options
                )
            except psycopg.ProgrammingError:  # it repeats what it cannot read: passwords, too
                raise psycopg.ProgrammingError("its URL is malformed") from None
        return self._connection


def _sql(text: str) -> sql.SQL:
    """A statement of our own words; values go in as parameters only."""
    return sql.SQL(text)


@lru_cache(maxsize=256)
def _translated(statement: str) -> Any:
    return _sql(PARAMETER.sub(r"%(\1)s", statement.replace("%", "%%")))
