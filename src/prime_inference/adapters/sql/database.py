"""One connection to a SQL database, as the stores use it.

Statements are written once for SQLite and Postgres, with parameters as `:name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

Row = tuple[Any, ...]


class Transaction(Protocol):
    """Statements of one transaction."""

    def rows(self, statement: str, **parameters: object) -> list[Row]:
        """Run a statement; its rows."""
        ...

    def run(self, statement: str, **parameters: object) -> int:
        """Run a statement; how many rows it changed."""
        ...

    def insert_new(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Insert the rows whose primary key is not there yet; how many those were."""
        ...

    def script(self, text: str) -> None:
        """Run several statements without parameters."""
        ...


class Database(Protocol):
    """Usable from any thread, by one at a time."""

    dialect: str
    unavailable: tuple[type[Exception], ...]  # what its driver raises when it cannot
    refused: tuple[type[Exception], ...]  # those of them that a repetition does not change

    def transaction(self) -> AbstractContextManager[Transaction]:
        """All or nothing: commits at the end of the block, rolls back on an exception."""
        ...

    def snapshot(self) -> AbstractContextManager[Transaction]:
        """Reads only, all of the same moment; holds up nobody."""
        ...

    def close(self) -> None: ...


@contextmanager
def guarded(
    database: Database, block: AbstractContextManager[Transaction], unavailable: type[Exception]
) -> Iterator[Transaction]:
    """A transaction of which `unavailable` is raised when the database cannot."""
    try:
        with block as transaction:
            yield transaction
    except database.unavailable as error:
        raise unavailable(f"{type(error).__name__}: {error}") from error
