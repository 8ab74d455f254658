"""What accounts cost: the gateway with a price and a budget beside the plain one.

Both are asked in turns. The shipper, which is a process of its own, is stopped meanwhile, so
that the gateway's CPU time is the gateway's; then it drains alone what has been gathered.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from prime_inference.bench.gateway.load import Load, Target
from prime_inference.bench.gateway.process import Child, StartFailed, free_port
from prime_inference.bench.gateway.upstream import MODEL, Upstream

PRICE = {
    "model": MODEL,
    "prompt": "1",
    "cached_prompt": "0.1",
    "completion": "2",
}
BUDGET = {"kind": "budget_monthly", "most_usd": "4000000", "tenant": "local"}  # never reached
SHIPPER = "prime_inference.compose_shipper"
POLL_S = 0.02
DRAIN_S = 120.0  # for a hundred times the events of a round

Ask = Callable[[Target], Load]


class Accounts(msgspec.Struct, frozen=True):
    """CPU in microseconds; medians of rounds."""

    database: str  # sqlite or postgres
    connections: int
    plain_us: float  # a request, by the gateway without accounts
    billed_us: float  # a request, with a price and a budget
    shipped_per_second: float  # events into the ledger, by the wall clock
    shipper_us: float  # an event, by the shipper


class Billed:
    """A gateway with accounts; `database` is as `--database` takes it."""

    def __init__(self, upstream: Upstream, folder: Path, core: int, database: str) -> None:
        self._state = folder / "state-billed"
        command: list[str | Path] = [
            sys.executable, "-m", "prime_inference.cli", "inference", "gateway",
            "--upstream", upstream.base_url, "--model-id", MODEL, "--port", str(free_port()),
            "--control-port", str(free_port()), "--state-dir", self._state,
            "--database", database, "--output", "json",
        ]  # fmt: skip
        self.child = Child(command, core=core, log=folder / "billed.log")
        try:
            self.child.wait_until(lambda: "\n" in self.child.output)
            announced = msgspec.json.decode(self.child.output.splitlines()[0])
            self._control = announced["control_url"]
            self.target = Target(f"{announced['base_url']}/chat/completions", announced["api_key"])
            self._admin("prices", PRICE)
            self._admin("limits", BUDGET)
            self.child.wait_until(lambda: bool(self.child.children(SHIPPER)))
            (self.shipper,) = self.child.children(SHIPPER)
        except BaseException:
            self.child.stop()
            raise

    def drain(self) -> None:
        """Wait until the ledger has every event. Raises StartFailed if it takes too long."""
        deadline = time.monotonic() + DRAIN_S
        while self._waiting():
            if time.monotonic() > deadline:
                raise StartFailed("the shipper does not come to an end")
            time.sleep(POLL_S)

    def _waiting(self) -> float:
        metrics = httpx.get(f"{self._control}/metrics", timeout=10, trust_env=False).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(metrics)
            for sample in family.samples
            if sample.name == "prime_outbox_bytes"
        )

    def _admin(self, path: str, body: dict[str, Any]) -> None:
        key = (self._state / "admin_key").read_text().strip()
        httpx.post(
            f"{self._control}/admin/v1/{path}",
            json=body,
            headers={"authorization": f"Bearer {key}"},
            timeout=30,
            trust_env=False,
        ).raise_for_status()


def measure(
    plain: Child, plain_target: Target, billed: Billed, ask: Ask, *, rounds: int, connections: int,
    database: str,
) -> Accounts:  # fmt: skip
    """Ask both in turns, and drain what was gathered after each turn."""
    costs: dict[str, list[float]] = {"plain": [], "billed": [], "shipped": [], "shipper": []}
    ask(billed.target)  # warms it
    billed.drain()
    for _ in range(rounds):
        plain.resume()
        before = plain.cpu_seconds()
        load = ask(plain_target)
        costs["plain"].append((plain.cpu_seconds() - before) / load.requests * 1e6)
        plain.pause()
        billed.child.pause_only(billed.shipper)
        before = billed.child.cpu_seconds()
        load = ask(billed.target)
        costs["billed"].append((billed.child.cpu_seconds() - before) / load.requests * 1e6)
        own = billed.child.cpu_seconds(billed.shipper)
        began = time.monotonic()
        billed.child.resume_only(billed.shipper)
        billed.drain()
        costs["shipped"].append(load.requests / (time.monotonic() - began))
        used = billed.child.cpu_seconds(billed.shipper) - own
        costs["shipper"].append(used / load.requests * 1e6)
    medians = {name: statistics.median(values) for name, values in costs.items()}
    return Accounts(
        "sqlite" if database.startswith("sqlite") else "postgres",
        connections,
        medians["plain"],
        medians["billed"],
        medians["shipped"],
        medians["shipper"],
    )
