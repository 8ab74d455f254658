"""How fast the usage pages are over many events, and whether their plans use indexes.

    python -m benchmarks.usage_pages --events 10000000 --database sqlite --out benchmarks/results
    python -m benchmarks.usage_pages --events 10000000 --database postgres --out benchmarks/results

Fills an empty database with generated events (the database makes them itself), asks what the
pages ask, and prints milliseconds. Fails if a plan scans a table. `sqlite` and `postgres` alone
are a file and a server (without fsync) in a temporary folder, gone at the end; ten million
events take 4 to 8 GB. With `--out`, `usage-pages.json` keeps the last run of each database, and
`usage-pages.md` shows them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sql.open import open_database
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import GroupBy, UsageFilter

CHUNK = 500_000  # in the order of the primary key, so that most rows find their page in memory
RUNS = 5  # of each page; the first may read from disk
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


SIZE = {
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "postgres": "SELECT pg_database_size(current_database())",
}
VERSION = {"sqlite": "SELECT sqlite_version()", "postgres": "SHOW server_version"}

TABLES = ("usage_event", "transfer", "usage_day")
INDEXES = {  # but those of primary keys
    "sqlite": """
        SELECT name, sql FROM sqlite_master
        WHERE type = 'index' AND sql IS NOT NULL AND tbl_name = :table
    """,
    "postgres": """
        SELECT indexname, indexdef FROM pg_indexes
        WHERE tablename = :table AND indexname NOT LIKE '%_pkey'
    """,
}
TRIGGERS = """
SELECT name, sql FROM sqlite_master
WHERE type = 'trigger' AND tbl_name IN ('usage_event', 'transfer', 'usage_day')
"""


def fill(database: Database, events: int) -> None:
    """Events spread over teams, keys, models and days, with all that follows from them."""
    with database.transaction() as transaction:
        ((batch,),) = transaction.rows(statements.NEW_BATCH, source="generated", now=0)
    with _bare(database):
        for first in range(0, events, CHUNK):
            with _timed(f"events from {first:,}"):
                _fill_chunk(database, batch, first, min(first + CHUNK, events))
        with _timed("what follows from them"):
            for statement in (statements.TRANSFERS_OF_EVENTS, statements.DAYS_OF_EVENTS):
                with database.transaction() as transaction:
                    transaction.run(statement, batch=batch)
            _pay(database, batch)
            with database.transaction() as transaction:
                transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)


@contextmanager
def _timed(what: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.1f} s", flush=True)


def _fill_chunk(database: Database, batch: int, first: int, after: int) -> None:
    dialect = database.dialect
    with database.transaction() as transaction:
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
            FROM numbers ORDER BY 1, 2
            """,
            first=first,
            after=after,
            batch=batch,
        )


def _pay(database: Database, batch: int) -> None:
    """Every team pays once in 30 days."""
    with database.transaction() as transaction:
        transaction.run(
            f"""
            INSERT INTO transfer (tenant, reference, kind, debit, credit, amount, at, about, memo,
                                  batch)
            {NUMBERS[database.dialect]}
            SELECT 'team-' || (n % {TENANTS}), 'pay-' || n, 'credit', 'cash',
                   'tenant:team-' || (n % {TENANTS}), 1000000000,
                   ({FIRST_DAY} + n / {TENANTS} * 30) * {statements.DAY_US}, '', '', :batch
            FROM numbers
            """,
            first=0,
            after=TENANTS * (DAYS // 30),
            batch=batch,
        )


@contextmanager
def _bare(database: Database) -> Iterator[None]:
    """Without what makes only the filling slow: made again at the end."""
    sqlite = database.dialect == "sqlite"
    with database.snapshot() as transaction:
        if sqlite:
            transaction.rows("PRAGMA cache_size = -2000000")
        else:
            transaction.run("SET work_mem = '256MB'")
            transaction.run("SET maintenance_work_mem = '512MB'")
            transaction.run("SET session_replication_role = replica")  # no look at foreign keys
        indexes = [
            row
            for table in TABLES
            for row in transaction.rows(INDEXES[database.dialect], table=table)
        ]
        triggers = transaction.rows(TRIGGERS) if sqlite else []
    with database.transaction() as transaction:
        for name, _ in indexes:
            transaction.run(f"DROP INDEX {name}")
        for name, _ in triggers:
            transaction.run(f"DROP TRIGGER {name}")
    yield
    with _timed("indexes"), database.transaction() as transaction:
        for _, statement in [*indexes, *triggers]:
            transaction.run(statement)
        if not sqlite:
            for table in TABLES:
                transaction.run(f"ANALYZE {table}")
            transaction.run("RESET work_mem")
            transaction.run("RESET session_replication_role")


def measure(database: Database, events: int) -> dict[str, Any]:
    """Milliseconds of every page, least and greatest of RUNS, and the lines of plans that scan."""
    began = time.perf_counter()
    fill(database, events)
    filled = time.perf_counter() - began
    ledger = SqlLedger(database)
    pages: dict[str, dict[str, Any]] = {}
    scans: list[str] = []

    def page(
        name: str,
        ask: Callable[[], Sequence[object]],
        statement: str,
        parameters: Mapping[str, object],
    ) -> None:
        times = []
        for _ in range(RUNS):
            began = time.perf_counter()
            rows = len(ask())
            times.append((time.perf_counter() - began) * 1e3)
        pages[name] = {"rows": rows, "ms": [round(min(times), 2), round(max(times), 2)]}
        print(f"{name}: {pages[name]}", flush=True)
        scans.extend(_scans(database, name, statement, parameters))

    for name, (group_by, where) in PAGES.items():
        page(name, partial(ledger.usage, group_by, where), *statements.usage(group_by, where))
    tenant = {"tenant": "team-7", "limit": 50, "offset": 0}
    lists: dict[str, tuple[str, dict[str, object]]] = {
        "the latest 50 generations": (statements.EVENTS, {**tenant}),
        "the latest 50 transfers": (statements.TRANSFERS, {**tenant}),
        "how many transfers there are": (statements.TRANSFER_COUNT, {"tenant": "team-7"}),
        "a month's payments": (statements.PAYMENTS, {"tenant": "team-7", **MONTH}),
        "generations 10,001 to 10,050": (statements.EVENTS, {**tenant, "offset": 10_000}),
        "one generation": (statements.EVENT, {"tenant": "team-33", "generation": "g7"}),
    }
    for name, (statement, parameters) in lists.items():
        page(name, partial(_rows, database, statement, parameters), statement, parameters)
    began = time.perf_counter()
    verified = ledger.verify()
    return {
        "events": events,
        "version": _rows(database, VERSION[database.dialect], {})[0][0],
        "bytes": _rows(database, SIZE[database.dialect], {})[0][0],
        "load": round(os.getloadavg()[1], 1),  # of five minutes, at the end
        "fill_s": round(filled),
        "pages": pages,
        "scans": scans,
        "verify_s": round(time.perf_counter() - began),
        "problems": list(verified.problems),
    }


def _rows(database: Database, statement: str, parameters: Mapping[str, object]) -> list[Any]:
    with database.snapshot() as transaction:
        return transaction.rows(statement, **parameters)


def _scans(
    database: Database, page: str, statement: str, parameters: Mapping[str, object]
) -> list[str]:
    """The lines of its plan that read a whole table."""
    explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
    plan = [str(row[-1]) for row in _rows(database, f"{explain} {statement}", parameters)]
    whole = "SCAN " if database.dialect == "sqlite" else "Seq Scan"
    return [f"{page}: {line}" for line in plan if whole in line]


@contextmanager
def opened(where: str) -> Iterator[Database]:
    """An empty database with its tables; of one that only the dialect is named, nothing is left."""
    with TemporaryDirectory() as folder:
        if where == "postgres":
            from tests.postgres_server import running_postgres

            with running_postgres() as server, opened(server.database()) as database:
                yield database
            return
        database = open_database(where, Path(folder), patient=True)
        migrate(database)
        yield database
        database.close()


def report(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of the last run of each database, as Markdown."""
    lines = [
        f"- {name} {run['version']}: {run['events']:,} events, {run['bytes'] / 1e9:.1f} GB, filled"
        f" in {run['fill_s']} s, load {run['load']}; `ledger verify` {run['verify_s']} s;"
        f" {len(run['scans'])} plans scan a table"
        for name, run in runs.items()
    ]
    pages = next(iter(runs.values()))["pages"]
    rows = [f"| page | rows | {' | '.join(f'{name}, ms' for name in runs)} |",
            "|---" * (len(runs) + 2) + "|"]  # fmt: skip
    for page, found in pages.items():
        times = [run["pages"][page]["ms"] for run in runs.values()]
        shown = " | ".join(f"{least:g} to {most:g}" for least, most in times)
        rows.append(f"| {page} | {found['rows']:,} | {shown} |")
    head = f"Milliseconds, least and greatest of {RUNS} runs in a row."
    return "\n".join([*lines, "", head, "", *rows, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument(
        "--database", required=True, help="sqlite, sqlite:FILE, postgres or postgresql://..., empty"
    )
    parser.add_argument("--out", type=Path, help="folder for usage-pages.json and .md")
    options = parser.parse_args()
    with opened(options.database) as database:
        found = measure(database, options.events)
        dialect = database.dialect
    if options.out is not None:
        name = options.out / "usage-pages"
        kept = name.with_suffix(".json")
        runs = {**(json.loads(kept.read_text()) if kept.exists() else {}), dialect: found}
        kept.write_text(json.dumps(runs, indent=1) + "\n")
        name.with_suffix(".md").write_text(report(runs))
    else:
        print(report({dialect: found}))
    if found["scans"] or found["problems"]:
        sys.exit("\n".join(found["scans"] + found["problems"]))


if __name__ == "__main__":
    main()
