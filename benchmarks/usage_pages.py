"""How fast the usage pages are over many events, and whether their plans use indexes.

    python -m benchmarks.usage_pages --events 10000000 --database sqlite:/tmp/pages.db

Fills an empty database with generated events (the database makes them itself), asks what the
pages ask, and prints seconds and plans. Fails if a plan scans a table of events.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sql.open import open_database
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import GroupBy, UsageFilter

BATCH = 100_000
FIRST_DAY = 20_800
DAYS = 365
TENANTS, KEYS, MODELS = 200, 1_000, 10

NUMBERS = {
    "sqlite": """
        WITH RECURSIVE numbers(n) AS (
            SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :after
        )""",
    "postgres": """
        WITH numbers AS (
            SELECT n FROM generate_series(CAST(:first AS BIGINT), :after - 1) AS g(n)
        )""",
}
FALSE = {"sqlite": "0", "postgres": "false"}
COLUMNS = ", ".join([*UsageEvent.__struct_fields__, "batch"])

PAGES: dict[str, tuple[tuple[GroupBy, ...], UsageFilter]] = {
    "a team's year by day": (("day",), UsageFilter(tenant="team-7")),
    "a team's month by key and model": (
        ("key_id", "model"),
        UsageFilter(tenant="team-7", first_day=FIRST_DAY + 300, last_day=FIRST_DAY + 330),
    ),
    "a model's month by team": (
        ("tenant",),
        UsageFilter(model="acme/model-3", first_day=FIRST_DAY + 300, last_day=FIRST_DAY + 330),
    ),
    "a key's total, whoever pays": ((), UsageFilter(key_id="key-207")),
    "a key's day": ((), UsageFilter(key_id="key-207", first_day=FIRST_DAY + 364)),
    "everybody's day by model": (("model",), UsageFilter(first_day=FIRST_DAY + 364)),
    "everybody's month by team": (
        ("tenant",),
        UsageFilter(first_day=FIRST_DAY + 300, last_day=FIRST_DAY + 330),
    ),
}


MONTH = {
    "begin": (FIRST_DAY + 300) * statements.DAY_US,
    "end": (FIRST_DAY + 331) * statements.DAY_US,
}


def fill(database: Database, events: int) -> None:
    """Events spread over teams, keys, models and days, with all that follows from them."""
    dialect = database.dialect
    if dialect == "sqlite":  # rows come in no order: with 2 MB of cache most are read from disk
        with database.snapshot() as transaction:
            transaction.rows("PRAGMA cache_size = -2000000")
    for first in range(0, events, BATCH):
        with database.transaction() as transaction:
            ((batch,),) = transaction.rows(statements.NEW_BATCH, source="generated", now=0)
            transaction.run(
                f"""
                INSERT INTO usage_event ({COLUMNS})
                {NUMBERS[dialect]}
                SELECT 'team-' || (n * 7919 % {TENANTS}), 'g' || n, 'usage',
                       'key-' || (n * 7919 % {KEYS}),
                       'acme/model-' || ((n + n / {KEYS}) % {MODELS}), 'dc-1',
                       'serverless', 'chat/completions', 'complete', {FALSE[dialect]}, 1,
                       n % 5000, n % 300, n % 700, 0, (n % 5000) * 1000,
                       ({FIRST_DAY} + n % {DAYS}) * {statements.DAY_US} + n, 100000, 900000,
                       {FALSE[dialect]}, :batch
                FROM numbers
                """,
                first=first,
                after=min(first + BATCH, events),
                batch=batch,
            )
            transaction.run(statements.TRANSFERS_OF_EVENTS, batch=batch)
            transaction.run(statements.DAYS_OF_EVENTS, batch=batch)
            transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--database", required=True, help="sqlite:FILE or postgresql://..., empty")
    options = parser.parse_args()
    database = open_database(options.database, Path())
    migrate(database)
    began = time.perf_counter()
    fill(database, options.events)
    print(f"{options.events:,} events in {time.perf_counter() - began:.0f} s")
    if database.dialect == "postgres":
        for table in ("usage_event", "transfer", "usage_day"):
            with database.transaction() as transaction:
                transaction.run(f"ANALYZE {table}")
    ledger = SqlLedger(database)
    scans = []
    for page, (group_by, where) in PAGES.items():
        began = time.perf_counter()
        rows = ledger.usage(group_by, where)
        print(f"{page}: {len(rows)} rows in {(time.perf_counter() - began) * 1e3:.1f} ms")
        statement, values = statements.usage(group_by, where)
        scans += _scans(database, page, statement, values)
    tenant = {"tenant": "team-7", "limit": 50, "offset": 0}
    for page, statement, parameters in (
        ("the latest 50 generations", statements.EVENTS, tenant),
        ("the latest 50 transfers", statements.TRANSFERS, tenant),
        ("a month's payments", statements.PAYMENTS, {"tenant": "team-7", **MONTH}),
        ("generations 10,001 to 10,050", statements.EVENTS, {**tenant, "offset": 10_000}),
        ("one generation", statements.EVENT, {"tenant": "team-33", "generation": "g7"}),
    ):
        began = time.perf_counter()
        with database.snapshot() as transaction:
            found = transaction.rows(statement, **parameters)
        print(f"{page}: {len(found)} rows in {(time.perf_counter() - began) * 1e3:.1f} ms")
        scans += _scans(database, page, statement, parameters)
    database.close()
    if scans:
        sys.exit("\n".join(scans))


def _scans(
    database: Database, page: str, statement: str, parameters: Mapping[str, object]
) -> list[str]:
    """The lines of its plan that read a whole table."""
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    with database.snapshot() as transaction:
        plan = [str(row[-1]) for row in transaction.rows(f"{explain} {statement}", **parameters)]
    whole = "SCAN " if database.dialect == "sqlite" else "Seq Scan"
    return [f"{page}: {line}" for line in plan if whole in line]


if __name__ == "__main__":
    main()
