"""`make crash`: 10,000 generations with 1,000 crashes, on SQLite and on Postgres."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from prime_inference.adapters.sql.migrate import migrate
from tests.postgres_server import running_postgres

from .campaign import Audit, campaign
from .worker import open_database


def run(folder: Path, ledger_at: str, generations: int, crashes: int, seed: int) -> Audit:
    """Crash until both numbers are reached. Raises AssertionError."""
    random = Random(seed)
    database = open_database(ledger_at)
    migrate(database)
    database.close()
    with campaign(folder, ledger_at) as lives:
        assert not lives.live(10)  # the first finds empty tables
        assert not lives.live(8)
        steps = lives.steps
        while lives.crashes < crashes:
            lives.live(100, crash_at=random.randint(1, 2 * steps))
        if lives.began < generations:
            assert not lives.live(generations - lives.began)
        return lives.audit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=10_000)
    parser.add_argument("--crashes", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(running_postgres())
        for name in ("sqlite", "postgres"):
            place = folder / name
            place.mkdir()
            where = str(place / "ledger.db") if name == "sqlite" else server.database()
            began = time.monotonic()
            found = run(place, where, options.generations, options.crashes, options.seed)
            print(f"{name}: {found} in {time.monotonic() - began:.0f} s: each accounted once")


if __name__ == "__main__":
    main()
