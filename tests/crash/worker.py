"""Forks workers that are killed at a given step. Reads orders from standard input.

An order is one JSON line, {"first", "count", "crash_at", "ship_every"}; the answer one line:
how the worker ended (0, or -9), how many generations it began, and the steps it took.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from prime_inference.adapters.files.outbox import FileOutbox, FileOutboxReader
from prime_inference.adapters.postgres.database import PostgresDatabase
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.billing.bill import Bill
from prime_inference.billing.shipper import Shipper
from prime_inference.domain.generation import Generation
from prime_inference.domain.prices import Price
from prime_inference.domain.usage import Usage

PRICE = Price(
    model="acme/echo-1",
    version=1,
    effective_from=0.0,
    prompt=1_500_000,
    cached_prompt=100_000,
    completion=2_000_001,
    reasoning=2_000_001,
)
DAY_S = 86_400
TENANTS = ("team-0", "team-1", "team-2")


def generation(number: int, attempt: int) -> Generation:
    """Each of another size, over several tenants and days."""
    return Generation(
        id=f"{number}.{attempt}",
        tenant=TENANTS[number % 3],
        key_id=f"key-{number % 5}",
        route="chat/completions",
        model=PRICE.model,
        deployment="engine-0",
        streamed=True,
        outcome="cancelled" if number % 7 == 0 else "complete",
        status=200,
        error="",
        usage=Usage(number % 1000 + 1, number % 77 + 1, source="upstream"),
        started_at=1_800_000_000.0 + DAY_S * (number % 4),
        first_token_seconds=0.1,
        duration_seconds=1.0,
    )


def crash_at(step: int) -> Callable[[], int]:
    """Kill this process when it takes that step; returns how to ask for the steps so far."""
    steps = 0

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(hook)
    return lambda: steps


def open_database(where: str) -> Database:
    """A file's path, or a URL of Postgres."""
    if where.startswith("postgresql:"):
        return PostgresDatabase(where)
    return SqliteDatabase(Path(where), "normal")


def open_ledger(where: str) -> SqlLedger:
    return SqlLedger(open_database(where))


def work(folder: Path, ledger_at: str, order: dict[str, int]) -> None:
    """One life: generations one after another, shipped now and then."""
    ledger = open_ledger(ledger_at)
    outbox = FileOutbox(folder / "outbox")
    shipper = Shipper(FileOutboxReader(folder / "outbox"), ledger, "worker", time.time)
    log = os.open(folder / "client.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    steps = crash_at(order["crash_at"])
    shipper.ship_once()  # what a life before left behind
    for number in range(order["first"], order["first"] + order["count"]):
        os.write(log, b"began %d.%d\n" % (number, order["life"]))
        Bill(outbox, PRICE).settle(generation(number, order["life"]))
        os.write(log, b"whole %d.%d\n" % (number, order["life"]))
        if number % order["ship_every"] == 0:
            shipper.ship_once()
    shipper.ship_once()
    taken = steps()
    sys.setprofile(None)
    os.write(log, b"steps %d\n" % taken)


def main() -> None:
    folder, ledger_at = Path(sys.argv[1]), sys.argv[2]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            work(folder, ledger_at, json.loads(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
