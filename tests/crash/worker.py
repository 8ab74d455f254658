"""Forks workers that are killed at a given step. Reads orders from standard input.

An order is one JSON line, {"first", "count", "crash_at", "ship_every", "life"}; the answer one
line: how the worker ended (0, or -9; anything else is a failed check).
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from prime_inference.accounts.directory import Directory, Records
from prime_inference.accounts.live import LiveDirectory
from prime_inference.adapters.files.outbox import FileOutbox, FileOutboxReader
from prime_inference.adapters.memory.limits import MemoryLimits
from prime_inference.adapters.postgres.database import PostgresDatabase
from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.billing.holds import Holds
from prime_inference.billing.reservation_charges import ReservationCharges
from prime_inference.billing.shipper import Shipper
from prime_inference.domain.limits import Limit
from prime_inference.gateway.billing import Billing, charging
from prime_inference.gateway.cache_salts import CacheSalts
from prime_inference.gateway.run import Run
from prime_inference.ports.ledger import UsageFilter
from prime_inference.ports.limits import Demand, HoldAsk

from .traffic import (
    BUDGETS,
    DURATION_S,
    FIRST_TOKEN_S,
    LIMITS,
    MODEL,
    PRICE,
    RESERVATION,
    Request,
    life_began,
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


class Gateway:
    """What of a gateway deals with money, over one outbox and one database."""

    def __init__(self, folder: Path, ledger_at: str, life: int) -> None:
        database = open_database(ledger_at)
        self.ledger = SqlLedger(database)
        directory = LiveDirectory(SqlAccounts(database))
        directory.current = Directory.of(
            Records(prices=[PRICE], limits=BUDGETS, reservations=[RESERVATION])
        )
        self._limits = MemoryLimits(lambda: 0.0)  # no bucket gains anything within a life
        self.holds = Holds(self._limits, self._spent, clock=lambda: 0.0)
        outbox = FileOutbox(folder / "outbox")
        self.billing = Billing(directory, outbox, self.holds, CacheSalts(b"key"))
        reader = FileOutboxReader(folder / "outbox")
        self.shipper = Shipper(reader, self.ledger, "worker", time.time)
        self.charges = ReservationCharges(
            self.ledger, lambda: [RESERVATION], lambda: life_began(life)
        )  # fmt: skip
        self._known: set[str] = set()  # limits that something was held of
        self._drawn = 0  # tokens that reserved slots gave

    async def serve(self, request: Request, answered: Callable[[], object]) -> None:
        """From admission until the request is settled, without an engine."""
        run = Run(request.id, request.operation, request.key, 0.0, request.started_at)
        run.model, run.deployment = MODEL.id, "engine-0"
        await self.billing.admit(run, MODEL, lambda reservation: True)
        assert run.account is not None
        own = [each.pool for each in run.reserved]
        run.pool = request.pool if request.pool in own else run.operation.pool
        run.first_token = FIRST_TOKEN_S
        assert run.account.hold is not None
        self._known |= {each.limit for each in run.account.hold.ask.demands}
        self._drawn += request.usage.completion_tokens * (request.pool == RESERVATION.pool)
        if request.outcome == "complete":
            charge = charging(run, lambda: DURATION_S)
            assert charge is not None
            charge(request.usage)
            answered()
        run.usage, run.outcome = request.usage, request.outcome
        run.account.close(run.generation(DURATION_S))
        if request.outcome != "complete":
            answered()

    async def wrong_limits(self) -> list[str]:
        """Limits of which, with all settled and shipped, another part is left than unused."""
        limits = [each for each in LIMITS if each.id in self._known]
        demands = [Demand(each.id, each.kind, each.most, 0) for each in limits]
        states = (await self._limits.reserve(HoldAsk("check", tuple(demands), 1.0))).states
        used = [
            await self._spent(each, 0) if each.kind.is_budget else self._drawn for each in limits
        ]
        return [
            limit.id
            for limit, state, amount in zip(limits, states, used, strict=True)
            if state.left != limit.most - amount
        ]

    async def _spent(self, limit: Limit, window: int) -> int:
        return self.ledger.usage((), UsageFilter(limit.tenant, first_day=window))[0].cost


async def work(folder: Path, ledger_at: str, order: dict[str, int]) -> None:
    """One life: requests one after another, shipped now and then."""
    gateway = Gateway(folder, ledger_at, order["life"])
    log = os.open(folder / "client.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    steps = crash_at(order["crash_at"])
    gateway.shipper.ship_once()  # what a life before left behind
    gateway.charges.charge()
    for number in range(order["first"], order["first"] + order["count"]):
        request = Request(number, order["life"])
        os.write(log, b"began %s\n" % request.id.encode())
        await gateway.serve(request, partial(os.write, log, b"whole %s\n" % request.id.encode()))
        if number % order["ship_every"] == 0:
            gateway.shipper.ship_once()
    await gateway.holds.drain()
    gateway.shipper.ship_once()
    taken = steps()
    sys.setprofile(None)
    os.write(log, b"steps %d\n" % taken)
    for name in await gateway.wrong_limits():
        os.write(log, b"wrong %s\n" % name.encode())


def main() -> None:
    folder, ledger_at, defect = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    if defect:
        plant(defect)
    gc.freeze()  # what workers do not touch, they share
    gc.disable()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(work(folder, ledger_at, json.loads(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def plant(defect: str) -> None:
    """Make this process, and those it forks, do something wrong."""
    from . import defects

    getattr(defects, defect)(defects.Patch())


if __name__ == "__main__":
    main()
