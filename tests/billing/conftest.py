"""Ledgers on both databases, each empty and with its tables."""

from __future__ import annotations

import pytest

from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from tests.sql_databases import DIALECTS, OpenDatabase, database, open_database

__all__ = ["DIALECTS", "OpenDatabase", "database", "open_database"]


@pytest.fixture
def ledger(database: Database) -> SqlLedger:
    return SqlLedger(database)
