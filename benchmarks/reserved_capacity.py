"""A team with reserved slots against a crowd: when it has its slots, and how soon it is answered.

    python benchmarks/reserved_capacity.py --out benchmarks/results

Real processes on loopback: three gateways with one Redis and one database, two mock engines.
The crowd keeps three times as many long answers going as there are slots; the team comes after
its slots were lent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx

from prime_inference.bench.faults.store import Store
from prime_inference.reliability.settings import LeaseSettings

COMMAND = (sys.executable, "-m", "prime_inference.cli", "inference")
MODEL = "acme/echo-1"
MESSAGES = [{"role": "user", "content": "Tell me about a river"}]
GATEWAYS = 3
DATACENTERS = ("east", "west")
SLOTS = 24  # of each datacenter
RESERVED = 16
FIRST_TOKEN_MS = 100
PACE_MS = 200
LONG_TOKENS = 300  # a minute: six leases, so that none of them ends in time by itself
SHORT_TOKENS = 5  # a second
CROWD = 3 * SLOTS * len(DATACENTERS)  # requests that somebody wants answered at any time
TEAM = 12  # clients, one request at a time, with pauses; so it is never over its reservation
PAUSE_S = 0.5  # at most
BURST_S = 30.0  # longer is a failure
LENT_AFTER_S = 2 * LeaseSettings().ttl_s + 5  # what a team used is kept for it for so long


@dataclass
class Seen:
    """What happened to requests."""

    first: list[float] = field(default_factory=list)  # seconds to the first token
    pools: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    spans: list[tuple[float, float]] = field(default_factory=list)  # seconds since the epoch

    def add(self, other: Seen) -> None:
        self.spans += other.spans
        self.first += other.first
        self.pools += other.pools
        self.ends += other.ends


class Processes:
    """Engines, a store, and gateways that share it; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[asyncio.subprocess.Process] = []
        self._store = Store(folder / "redis")
        self.base_urls: list[str] = []
        self.control_url = ""
        self._admin_key = ""

    async def start(self) -> None:
        await self._store.start()
        engines = []
        for _ in DATACENTERS:
            said = await self._process(
                "mock-engine", "--model", MODEL, "--first-token-ms", str(FIRST_TOKEN_MS),
                "--pace-ms", str(PACE_MS), "--context-tokens", "8192",
                "--answer-tokens", str(LONG_TOKENS),
            )  # fmt: skip
            engines.append(said["base_url"])
        fleet = self._folder / "fleet.toml"
        fleet.write_text(_fleet(engines))
        for number in range(GATEWAYS):
            state = self._folder / f"state-{number}"
            said = await self._process(
                "gateway", "--config", str(fleet), "--port", "0", "--control-port", "0",
                "--state-dir", str(state), "--redis", self._store.url,
                "--database", f"sqlite:{self._folder / 'prime.db'}", "--replicas", str(GATEWAYS),
            )  # fmt: skip
            self.base_urls.append(said["base_url"])
            if not number:
                self.control_url = said["control_url"]
                self._admin_key = (state / "admin_key").read_text().strip()

    async def stop(self) -> None:
        for process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
        await self._store.kill()

    def first_tokens(self) -> list[tuple[float, float]]:
        """When each request on a reserved slot began, and how long its first token took."""
        found = []
        for number in range(GATEWAYS):
            path = self._folder / f"state-{number}" / "generations.jsonl"
            for line in path.read_text().splitlines():
                one = json.loads(line)
                if one["pool"] != "serverless" and one["first_token_seconds"]:
                    found.append((one["started_at"], one["first_token_seconds"]))
        return found

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            response = await client.request(
                method,
                f"{self.control_url}/admin/v1/{path}",
                json=body,
                headers={"authorization": f"Bearer {self._admin_key}"},
            )
        response.raise_for_status()
        return response.json()

    async def _process(self, *arguments: str) -> dict[str, Any]:
        with (self._folder / "errors.txt").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, *arguments, "--output", "json",
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, "HOME": str(self._folder)},
            )  # fmt: skip
        self._running.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        if not line:
            raise RuntimeError((self._folder / "errors.txt").read_text()[-800:])
        said: dict[str, Any] = json.loads(line)
        return said


def _fleet(engines: Sequence[str]) -> str:
    lines = [
        f'[[models]]\nid = "{MODEL}"\nrevision = "mock-1"\ncontext_tokens = 8192\n',
        *(f'[[datacenters]]\nid = "{name}"\n' for name in DATACENTERS),
    ]
    for name, url in zip(DATACENTERS, engines, strict=True):
        lines.append(
            f'[[deployments]]\nid = "{name}-1"\nmodel = "{MODEL}"\ndatacenter = "{name}"\n'
            f'base_url = "{url}"\nengine = "vllm"\nslots = {SLOTS}\n'
        )
    return "\n".join(lines)


class Clients:
    """Asks the gateways in turn and notes what happens."""

    def __init__(self, base_urls: Sequence[str], key: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(
            trust_env=False, limits=limits, timeout=120, headers={"authorization": f"Bearer {key}"}
        )
        self._urls: Iterator[str] = itertools.cycle(base_urls)
        self.seen = Seen()
        self.begun = 0  # answers that are coming at this moment

    async def ask(self, tokens: int) -> float:
        """One stream to its end; seconds to wait before the next. Notes the first token."""
        body = {"model": MODEL, "messages": MESSAGES, "max_tokens": tokens, "stream": True}
        sent, seen, first = time.monotonic(), self.seen, 0.0
        url = f"{next(self._urls)}/chat/completions"
        try:
            async with self._http.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    seen.ends[str(response.status_code)] += 1
                    return float(response.headers.get("retry-after", "1"))
                seen.pools[response.headers["x-prime-pool"].partition(":")[0]] += 1
                end = "cut"
                async for line in response.aiter_lines():
                    if not first and '"content":"' in line:
                        first = time.monotonic() - sent
                        seen.first.append(first)
                        self.begun += 1
                    if '"error"' in line:
                        end = json.loads(line.removeprefix("data: "))["error"]["code"]
                    elif line == "data: [DONE]":
                        end = "whole"
            seen.ends[end] += 1
        finally:
            self.begun -= bool(first)
        return 0.0

    async def crowd(self) -> None:
        """One of the crowd: a long answer after the other, and again when told to wait."""
        while True:  # noqa: ASYNC110
            await asyncio.sleep(await self.ask(LONG_TOKENS))

    async def member(self, random: Random) -> None:
        """One of the team: a short answer after the other, with pauses."""
        while True:  # noqa: ASYNC110
            await asyncio.sleep(await self.ask(SHORT_TOKENS) or random.uniform(0, PAUSE_S))

    async def close(self) -> None:
        await self._http.aclose()


@contextlib.asynccontextmanager
async def going(*works: Any) -> AsyncIterator[None]:
    """The works go on for as long as the block lasts."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def team_at_work(team: Clients, seconds: float, seed: int) -> tuple[Seen, Seen]:
    """What the team saw in the first lease time, in which its slots come back, and then."""
    coming, there = Seen(), Seen()
    async with going(*(team.member(Random(f"{seed}{n}")) for n in range(TEAM))):
        for seen, lasts in ((coming, LeaseSettings().ttl_s), (there, seconds)):
            team.seen, began = seen, time.time()
            await asyncio.sleep(lasts)
            seen.spans.append((began, time.time()))
    return coming, there


async def burst(team: Clients) -> tuple[list[float], Seen]:
    """As many long answers as there are reserved slots, all at once.

    Seconds until so many of them had begun, for one after the other; who is refused asks again
    when he was told to. They are ended when all have begun.
    """
    team.seen = seen = Seen()
    began, times = time.monotonic(), list[float]()
    async with going(*(team.crowd() for _ in range(RESERVED))):
        while len(times) < RESERVED and time.monotonic() - began < BURST_S:
            await asyncio.sleep(0.01)
            times += [time.monotonic() - began] * (team.begun - len(times))
    return times, seen


async def measure(processes: Processes, rounds: int, seconds: float) -> dict[str, Any]:
    tenant = (await processes.admin("POST", "teams", {"name": "t", "slug": "t"}))["teamId"]
    other = (await processes.admin("POST", "teams", {"name": "o", "slug": "o"}))["teamId"]
    team, crowd = [
        Clients(
            processes.base_urls,
            (await processes.admin("POST", "keys", {"tenant": each, "name": "k"}))["key"],
        )
        for each in (tenant, other)
    ]
    wanted = {"tenant": tenant, "model": MODEL, "slots": RESERVED, "price_usd": "1", "spill": False}
    await processes.admin("POST", "reservations", wanted)
    await asyncio.sleep(5)  # every gateway has heard of keys and reservation
    _, unloaded = await team_at_work(team, seconds, seed=0)
    coming, loaded, bursting, bursts, lent = Seen(), Seen(), Seen(), [], []
    try:
        async with going(*(crowd.crowd() for _ in range(CROWD))):
            for number in range(rounds):
                await asyncio.sleep(LENT_AFTER_S)
                lent.append(crowd.begun - (SLOTS * len(DATACENTERS) - RESERVED))
                times, asked = await burst(team)
                bursts.append(times)
                bursting.add(asked)
                await asyncio.sleep(LENT_AFTER_S)
                first, then = await team_at_work(team, seconds, seed=number + 1)
                coming.add(first)
                loaded.add(then)
    finally:
        await team.close()
        await crowd.close()
    await asyncio.sleep(1)  # gateways write what they have gathered
    served = processes.first_tokens()
    return {
        "slots": SLOTS * len(DATACENTERS),
        "reserved": RESERVED,
        "gateways": GATEWAYS,
        "crowd": CROWD,
        "crowd_answer_s": LONG_TOKENS * PACE_MS / 1000,
        "rounds": rounds,
        "seconds": seconds,
        "lease_s": LeaseSettings().ttl_s,
        "lent_slots": lent,
        "burst_ends": dict(bursting.ends),
        "burst_pools": dict(bursting.pools),
        "burst_begun_s": [[round(each, 3) for each in one] for one in bursts],
        "unloaded": _summary(unloaded, served),
        "loaded_first_lease": _summary(coming, served),
        "loaded": _summary(loaded, served),
        "crowd_ends": dict(crowd.seen.ends),
    }


def _summary(seen: Seen, served: Sequence[tuple[float, float]]) -> dict[str, Any]:
    inside = [
        first for began, first in served if any(a <= began < b for a, b in seen.spans)
    ]  # fmt: skip
    return {
        "answers": len(seen.first),
        "p50_ms": _quantile_ms(seen.first, 0.5),
        "p99_ms": _quantile_ms(seen.first, 0.99),
        "worst_ms": _quantile_ms(seen.first, 1.0),
        "gateways_p50_ms": _quantile_ms(inside, 0.5),
        "gateways_p99_ms": _quantile_ms(inside, 0.99),
        "pools": dict(seen.pools),
        "ends": dict(seen.ends),
    }


def _quantile_ms(seconds: Sequence[float], share: float) -> float:
    return round(1000 * sorted(seconds)[int(share * (len(seconds) - 1))], 1)


def table(found: dict[str, Any]) -> str:
    slowest = [one[-1] for one in found["burst_begun_s"]]
    rows = [
        f"{found['gateways']} gateways, {found['slots']} slots, {found['reserved']} of them"
        f" reserved; a crowd of {found['crowd']} clients whose answers take"
        f" {found['crowd_answer_s']:.0f} s. {found['rounds']} rounds.",
        "",
        "| figure | value |",
        "|---|---|",
        f"| reserved slots that were lent when the team came | {found['lent_slots']} |",
        f"| the team asks for all {found['reserved']} at once: until all have begun, each round"
        f" | {', '.join(f'{each:.2f} s' for each in slowest)} |",
        f"| of these requests, refused and sent again | {sum(found['burst_ends'].values())} |",
        "",
        "| the team's first token | answers | p50 | p99 | worst | p50, p99 by the gateways' clocks"
        " | served by |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, part in (
        ("no crowd", found["unloaded"]),
        ("crowd, the first lease time after the team came", found["loaded_first_lease"]),
        ("crowd, afterwards", found["loaded"]),
    ):
        rows.append(
            f"| {name} | {part['answers']} | {part['p50_ms']} ms | {part['p99_ms']} ms"
            f" | {part['worst_ms']} ms"
            f" | {part['gateways_p50_ms']} ms, {part['gateways_p99_ms']} ms"
            f" | {_counts(part['pools'])} |"
        )
    return "\n".join([*rows, "", f"The crowd's answers: {_counts(found['crowd_ends'])}.", ""])


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


async def run(rounds: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(Path(folder))
        try:
            await processes.start()
            return await measure(processes, rounds, seconds)
        finally:
            await processes.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="of the team at work")
    parser.add_argument("--out", type=Path, help="folder for reserved-capacity.json and .md")
    options = parser.parse_args()
    found = asyncio.run(run(options.rounds, options.seconds))
    text = table(found)
    print(text)
    if options.out is not None:
        name = options.out / "reserved-capacity"
        name.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        name.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
