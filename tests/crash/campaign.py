"""Runs workers through crash after crash, and audits what they left."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import REVENUE, UsageFilter, tenant_account

from .traffic import LIVES_IN_A_PERIOD, RESERVATION, TENANTS, Request
from .worker import open_ledger

EVERY_EVENT = 1_000_000


@dataclass(frozen=True)
class Audit:
    """What the client saw beside what the ledger has, in generations."""

    began: int
    whole: int  # answers whose end the client saw
    charged: int
    crashes: int
    pools: dict[str, int]  # of the charged


class Campaign:
    """Lives of workers over one outbox and one ledger."""

    def __init__(self, folder: Path, ledger_at: str, forks: subprocess.Popen[str]) -> None:
        self._log = folder / "client.log"
        self._ledger_at = ledger_at
        self._forks = forks
        self._read = 0  # bytes of the log
        self._began: dict[str, Request] = {}
        self._whole: set[str] = set()
        self._lives = 0
        self.steps = 0  # of the last life that was not killed
        self.crashes = 0

    @property
    def began(self) -> int:
        return len(self._began)

    def live(self, count: int, crash_at: int = 0, ship_every: int = 3) -> bool:
        """One life of at most `count` generations; whether it was killed."""
        self._lives += 1
        order = {
            "first": self.began + 1,
            "count": count,
            "crash_at": crash_at,
            "ship_every": ship_every,
            "life": self._lives,
        }
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(order) + "\n")
        self._forks.stdin.flush()
        code = int(self._forks.stdout.readline())
        assert code in (0, -9), f"the worker ended with {code}"
        self.crashes += code != 0
        self._read_log()
        return code != 0

    def audit(self) -> Audit:
        """Ship what is left, and compare. Raises AssertionError."""
        assert not self.live(0)
        ledger = open_ledger(self._ledger_at)
        try:
            events = self._compare(ledger)
        finally:
            ledger.close()
        pools = Counter(event.pool for event in events)
        return Audit(self.began, len(self._whole), len(events), self.crashes, dict(pools))

    def _compare(self, ledger: SqlLedger) -> list[UsageEvent]:
        found = ledger.verify()
        assert found.sound, found.problems
        listed = [event for tenant in TENANTS for event in ledger.events(tenant, EVERY_EVENT)]
        events = {event.generation: event for event in listed}
        assert len(events) == len(listed) == found.events
        for identity, event in events.items():
            owed = self._began[identity].event
            assert event == owed, f"owed was {owed}"
        assert self._whole <= events.keys(), "seen whole, and not in the ledger"
        assert len(events) <= len(self._whole) + self.crashes
        self._compare_sums(ledger, listed)
        return listed

    def _compare_sums(self, ledger: SqlLedger, events: list[UsageEvent]) -> None:
        """What usage pages, balances and the reservation's owner are shown."""
        costs: Counter[tuple[str | int, ...]] = Counter()
        for event in events:
            costs[event.tenant, event.pool] += event.cost
        shown = {row.group: row.cost for row in ledger.usage(("tenant", "pool"), UsageFilter())}
        assert shown == costs
        periods = (self._lives - 1) // LIVES_IN_A_PERIOD + 1
        charged = ledger.periods_paid(RESERVATION.tenant, RESERVATION.id)
        assert charged == periods, f"{charged} periods are charged of {periods}"
        reserved = periods * RESERVATION.price
        for tenant in TENANTS:
            spent = sum(cost for (whose, _), cost in costs.items() if whose == tenant)
            also = reserved if tenant == RESERVATION.tenant else 0
            assert ledger.balance(tenant_account(tenant)) == -spent - also
        assert ledger.balance(REVENUE) == sum(costs.values()) + reserved

    def _read_log(self) -> None:
        if not self._log.exists():
            return
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        self._read += len(text)
        for line in text.decode().splitlines():
            word, value = line.split()
            if word == "steps":
                self.steps = int(value)
            elif word == "whole":
                assert value not in self._whole
                self._whole.add(value)
            elif word == "wrong":
                raise AssertionError(f"of the limits {value} has not what the ledger has")
            else:
                number, life = value.split(".")
                self._began[value] = Request(int(number), int(life))


@contextmanager
def campaign(folder: Path, ledger_at: str, defect: str = "") -> Iterator[Campaign]:
    """A process that forks workers; the ledger has its tables. `defect`: one of `defects`."""
    forks = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.worker", folder, ledger_at, defect],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert forks.stdin is not None
    assert forks.stdout is not None
    try:
        yield Campaign(folder, ledger_at, forks)
    finally:
        forks.stdin.close()
        forks.stdout.close()
        forks.wait()
