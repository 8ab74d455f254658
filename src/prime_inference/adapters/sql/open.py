"""The database that an option names."""

from __future__ import annotations

from pathlib import Path

from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.domain.errors import CannotStart

POSTGRES = ("postgresql:", "postgres:")
SQLITE = "sqlite"


def is_database(where: str) -> bool:
    """Whether it is sqlite, sqlite:FILE or postgresql://..."""
    return where.partition(":")[0] == SQLITE or where.startswith(POSTGRES)


def open_database(where: str, state_dir: Path, *, patient: bool = False) -> Database:
    """A connection; a SQLite file without a name is in the state folder. Raises CannotStart.

    A `patient` one lets statements take as long as they need.
    """
    if where.startswith(POSTGRES):
        try:
            from prime_inference.adapters.postgres.database import PostgresDatabase
        except ImportError as error:
            raise CannotStart(
                "Postgres needs the extra: pip install 'prime-inference[postgres]'."
            ) from error
        return PostgresDatabase(where, 0) if patient else PostgresDatabase(where)
    file = where.partition(":")[2]
    return SqliteDatabase(Path(file) if file else state_dir / "prime.db")
