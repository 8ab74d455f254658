"""Brings a database's tables up to date: numbered files, forward only, each in a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from prime_inference.adapters.sql.database import Database, Transaction

VERSIONS = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY)"
LOCK = "SELECT pg_advisory_xact_lock(7246392)"  # a number of our own, for migrations only


class SchemaTooNew(Exception):
    """The database was written by a later release of the program."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of `migrations/`: NNNN_name.sql."""

    version: int
    name: str
    text: str


def migrations(dialect: str) -> list[Migration]:
    """All of a dialect, in order."""
    folder = files(__package__).joinpath("migrations", dialect)
    found = []
    for entry in folder.iterdir():
        stem, _, suffix = entry.name.rpartition(".")
        if suffix == "sql":
            number, _, name = stem.partition("_")
            found.append(Migration(int(number), name, entry.read_text()))
    return sorted(found, key=lambda migration: migration.version)


def migrate(database: Database, upto: int | None = None) -> int:
    """Run what is missing; the version reached. Raises SchemaTooNew.

    Processes that start together wait for one another: each step looks again under the lock.
    """
    known = migrations(database.dialect)
    newest = known[-1].version if upto is None else upto
    for migration in known:
        if migration.version <= newest:
            with database.transaction() as transaction:
                _step(transaction, migration, known[-1].version, database.dialect)
    return newest


def _step(transaction: Transaction, migration: Migration, newest: int, dialect: str) -> None:
    if dialect == "postgres":  # in SQLite a transaction that writes is alone anyway
        transaction.rows(LOCK)
    transaction.run(VERSIONS)
    ((reached,),) = transaction.rows("SELECT coalesce(max(version), 0) FROM schema_version")
    if reached > newest:
        raise SchemaTooNew(f"version {reached} of the tables; this program knows {newest}")
    if migration.version > reached:
        transaction.script(migration.text)
        transaction.run("INSERT INTO schema_version VALUES (:version)", version=migration.version)
