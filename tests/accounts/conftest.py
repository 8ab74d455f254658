"""Accounts on both databases."""

from __future__ import annotations

import pytest

from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.database import Database
from tests.sql_databases import OpenDatabase, database, open_database

__all__ = ["OpenDatabase", "database", "open_database"]


@pytest.fixture
def accounts(database: Database) -> SqlAccounts:
    return SqlAccounts(database)
