"""What billing costs: CPU per request at the gateway, and events per second into the ledger.

    python -m benchmarks.billing_cost [--postgres URL]

Admission and settlement are called as the gateway calls them, without network around them;
the figure is the median of rounds. The shipper drains a full outbox into SQLite and, with a
URL, into Postgres; its own CPU is measured beside the wall clock.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from prime_inference.accounts.directory import Directory, Records
from prime_inference.accounts.live import LiveDirectory
from prime_inference.adapters.files.outbox import FileOutbox, FileOutboxReader
from prime_inference.adapters.memory.limits import MemoryLimits
from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sql.open import open_database
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.billing.holds import Holds
from prime_inference.billing.rating import usage_event
from prime_inference.billing.shipper import Shipper
from prime_inference.domain import keys as api_keys
from prime_inference.domain.generation import Generation
from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.models import Model
from prime_inference.domain.prices import Price
from prime_inference.domain.usage import Usage
from prime_inference.gateway.billing import Billing, charging
from prime_inference.gateway.cache_salts import CacheSalts
from prime_inference.gateway.operations import chat_operation
from prime_inference.gateway.run import Run
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import decode_chat_request

REQUESTS = 5_000  # a round
IN_FLIGHT = 64
ROUNDS = 7
EVENTS = 50_000
MODEL = Model("acme/echo-1", "r1", 0, 131_072, 131_072)
PRICE = Price(
    model=MODEL.id, version=1, effective_from=0.0,
    prompt=1_000_000, cached_prompt=100_000, completion=2_000_000, reasoning=2_000_000,
)  # fmt: skip
BODY = b'{"model": "acme/echo-1", "messages": [{"role": "user", "content": "%b"}]}' % (b"x" * 400)
LIMITS = (
    Limit("budget", LimitKind.BUDGET_MONTHLY, 2**52, tenant="team"),
    Limit("requests", LimitKind.REQUESTS_PER_MINUTE, 2**50, tenant="team"),
    Limit("tokens", LimitKind.TOKENS_PER_MINUTE, 2**50, tenant="team"),
    Limit("places", LimitKind.CONCURRENCY, 2**20, tenant="team"),
)


class _Fixed(LiveDirectory):
    def __init__(self, accounts: SqlAccounts, records: Records) -> None:
        super().__init__(accounts)
        self.current = Directory.of(records)


async def _nothing_spent(limit: Limit, window: int) -> int:
    return 0


async def request_cost(folder: Path, prices: Sequence[Price], limits: Sequence[Limit]) -> float:
    """Microseconds of CPU that a request spends in admission, charging and closing."""
    accounts = SqlAccounts(SqliteDatabase(folder / "accounts.db", "normal"))
    directory = _Fixed(accounts, Records(prices=prices, limits=limits))
    outbox = FileOutbox(folder / "outbox")
    holds = Holds(MemoryLimits(time.monotonic), _nothing_spent)
    billing = Billing(directory, outbox, holds, CacheSalts(b"key"))
    operation = chat_operation(decode_chat_request(BODY, SchemaBounds()))
    _, key = api_keys.create("team", name="", created_at=0.0)
    usage = Usage(120, 80, source="upstream")
    rounds = []
    for _ in range(ROUNDS):
        runs = [Run(f"{n}-{_}", operation, key, 0.0, time.time()) for n in range(REQUESTS)]
        for run in runs:
            run.model = MODEL.id
        began = time.thread_time()
        for start in range(0, REQUESTS, IN_FLIGHT):
            batch = runs[start : start + IN_FLIGHT]
            for run in batch:
                await billing.admit(run, MODEL, lambda reservation: True)
            for run in batch:
                charge = charging(run, time.monotonic)
                if charge is not None:
                    charge(usage)
                run.usage, run.outcome = usage, "complete"
                generation = run.generation(0.0)
                assert run.account is not None
                run.account.close(generation)
            await asyncio.sleep(0)
        await holds.drain()
        billing.flush()
        rounds.append((time.thread_time() - began) / REQUESTS * 1e6)
    outbox.close()
    accounts.close()
    return statistics.median(rounds)


def drained(folder: Path, database: Database, ledger: SqlLedger) -> tuple[float, float]:
    """Events per second of wall clock, and CPU microseconds of the shipper per event."""
    folder.mkdir()
    migrate(database)
    outbox = FileOutbox(folder / "outbox")
    events = [usage_event(_generation(number), PRICE) for number in range(EVENTS)]
    for start in range(0, EVENTS, 100):
        outbox.append(events[start : start + 100])
    reader = FileOutboxReader(folder / "outbox")
    shipper = Shipper(reader, ledger, "benchmark")
    began, cpu = time.perf_counter(), time.process_time()
    while shipper.ship_once():
        pass
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert ledger.verify().events >= EVENTS
    reader.close()
    outbox.close()
    return EVENTS / seconds, cpu / EVENTS * 1e6


def _generation(number: int) -> Generation:
    return Generation(
        id=f"{number:024x}", tenant=f"team-{number % 50}", key_id=f"key-{number % 200}",
        route="chat/completions", model=f"acme/model-{number % 7}", deployment="dc-1",
        streamed=True, outcome="complete", status=200, error="",
        usage=Usage(1000 + number % 500, 300, 200, source="upstream"),
        started_at=1_800_000_000.0 + number, first_token_seconds=0.2, duration_seconds=3.0,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="URL of an empty database")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        cases = {
            "no price, no limit": ((), ()),
            "a price": ((PRICE,), ()),
            "a price and a budget": ((PRICE,), LIMITS[:1]),
            "a price and four limits": ((PRICE,), LIMITS),
        }
        for place, (case, (prices, limits)) in enumerate(cases.items()):
            (folder / str(place)).mkdir()
            cost = asyncio.run(request_cost(folder / str(place), prices, limits))
            print(f"{case}: {cost:.1f} us of CPU a request")
        sqlite = SqliteDatabase(folder / "ledger.db")
        rate, cpu = drained(folder / "sqlite", sqlite, SqlLedger(sqlite))
        print(f"shipper into SQLite: {rate:,.0f} events/s, {cpu:.0f} us of CPU each")
        sqlite.close()
        if options.postgres:
            postgres = open_database(options.postgres, folder)
            rate, cpu = drained(folder / "postgres", postgres, SqlLedger(postgres))
            print(f"shipper into Postgres: {rate:,.0f} events/s, {cpu:.0f} us of its CPU each")
            postgres.close()


if __name__ == "__main__":
    main()
