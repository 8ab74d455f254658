"""Plays a plan on real processes under load, and counts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from prime_inference.bench.chaos.engine import EngineProcess
from prime_inference.bench.chaos.plan import Fault, Plan
from prime_inference.bench.faults.client import MODEL, Answer
from prime_inference.bench.faults.replica import Clocks, Replica
from prime_inference.bench.faults.store import Store
from prime_inference.bench.faults.traffic import Balancer
from prime_inference.engines.mock import expected_text
from prime_inference.reliability.settings import LeaseSettings

DATACENTERS = ("east", "east", "west", "west")  # of the four deployments
GATEWAYS = 3
SLOTS = 32  # of each deployment
TOKENS, PACE_MS, FIRST_TOKEN_MS = 50, 16.0, 20.0  # an answer of 0.8 s
PER_SECOND = 12.0  # ten requests at a time: one deployment alone can take them
BURST = 150  # requests at once: more than all slots together
CLOCKS = Clocks(connect=1.0, first_token=3.0, idle=3.0)
BURST_SECONDS = 6.0  # until a burst is served: its requests, twice refused, and their answers
LEARNING_S = LeaseSettings().ttl_s + 1.0
REFUSALS_OBEYED = 2  # as OpenAI's SDKs
END_SECONDS = 60.0 * REFUSALS_OBEYED + 20.0  # who is told to come in a minute is not stuck


@dataclass
class Outcome:
    """One request of a client: every answer it was given."""

    burst: bool
    began: float
    expected: str
    answers: list[Answer] = field(default_factory=list)

    @property
    def last(self) -> Answer:
        return self.answers[-1]

    @property
    def word(self) -> str:
        return self.last.outcome(self.expected)

    @property
    def refusals(self) -> int:
        return sum(_is_refusal(answer) for answer in self.answers)


@dataclass
class Count:
    """What a run found; `bad` has a line for each thing that must not be."""

    seed: int
    seconds: float
    faults: int = 0
    requests: int = 0
    complete: int = 0
    lost: int = 0  # in the hands of a gateway that was killed
    refusals: int = 0  # typed, obeyed
    burst_refused: int = 0
    connections_refused: int = 0
    slowest: float = 0.0
    most: dict[str, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)


class World:
    """The processes of a run."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._random = random
        self._config = folder / "fleet.toml"
        self.store = Store(folder / "redis")
        self.engines = [
            EngineProcess(
                slots=SLOTS, pace_ms=PACE_MS, first_token_ms=FIRST_TOKEN_MS, tokens=TOKENS
            )
            for _ in DATACENTERS
        ]
        self.gateways = [
            Replica(folder / f"gateway-{number}", self._config, self.store.url, clocks=CLOCKS)
            for number in range(GATEWAYS)
        ]
        self.killed: list[tuple[float, str]] = []  # when, which gateway
        self.bursts: list[float] = []  # when
        self.outcomes: list[Outcome] = []
        self._broken: set[tuple[str, int]] = set()
        self._balancer: Balancer | None = None
        self._requests: set[asyncio.Task[None]] = set()
        self._repairs: set[asyncio.Task[None]] = set()
        self._number = 0
        self.began = 0.0

    async def start(self) -> None:
        await self.store.start()
        await asyncio.gather(*(engine.start() for engine in self.engines))
        self._write_fleet()
        first, *others = self.gateways
        await first.start()
        for gateway in others:
            gateway.share_key(first)
        await asyncio.gather(*(gateway.start() for gateway in others))
        self._balancer = Balancer(self.gateways, first.key)

    async def stop(self) -> None:
        for task in (*self._repairs, *self._requests):
            task.cancel()
        await asyncio.gather(*self._repairs, *self._requests, return_exceptions=True)
        for gateway in self.gateways:
            await gateway.stop()
        for engine in self.engines:
            await engine.stop()
        await self.store.kill()
        if self._balancer is not None:
            await self._balancer.close()

    async def run(self, plan: Plan, say: Callable[[str], None]) -> int:
        """Load and faults until the plan's time is over and everything is whole; how many.

        Faults begin when the store has learnt who is there: until then a gateway that starts has
        one slot of each deployment, by design, and a fault more is more than that can carry.
        """
        load = asyncio.create_task(self._load())
        await asyncio.sleep(LEARNING_S)
        began = self.began = time.monotonic()
        count = 0
        try:
            for fault in plan.faults():
                await asyncio.sleep(max(0.0, began + fault.at - time.monotonic()))
                say(str(fault))
                count += 1
                self._break(fault)
            await asyncio.sleep(max(0.0, began + plan.seconds - time.monotonic()))
            if self._repairs:
                await asyncio.gather(*self._repairs)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        if self._requests:
            await asyncio.wait(self._requests, timeout=END_SECONDS)
        for engine in self.engines:
            await engine.look()
        return count

    @property
    def unanswered(self) -> int:
        return len(self._requests)

    @property
    def connections_refused(self) -> int:
        return self._balancer.refusals if self._balancer else 0

    # -- faults

    def _break(self, fault: Fault) -> None:
        if fault.kind == "clients":
            self.bursts.append(time.monotonic())
            for _ in range(BURST):
                self._send(burst=True)
            return
        broken = {place for place in self._broken if place[0] == fault.kind}
        whole = {"engine": len(self.engines), "gateway": GATEWAYS, "store": 2}[fault.kind]
        place = fault.kind, fault.number
        if place in broken or len(broken) + 1 >= whole:  # a repair took longer than planned
            return
        self._broken.add(place)
        task = asyncio.create_task(self._play(fault))
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)
        task.add_done_callback(lambda _: self._broken.discard(place))

    async def _play(self, fault: Fault) -> None:
        match fault.kind:
            case "engine":
                thing: EngineProcess | Replica | Store = self.engines[fault.number]
            case "gateway":
                thing = self.gateways[fault.number]
            case _:
                thing = self.store
        if fault.deed == "freeze":
            thing.freeze()
            await asyncio.sleep(fault.lasting)
            thing.thaw()
            return
        if isinstance(thing, Replica) and fault.deed == "drain":
            await thing.drain()
        else:
            if isinstance(thing, Replica):
                self.killed.append((time.monotonic(), thing.folder.name))
            await thing.kill()
            await asyncio.sleep(fault.lasting)
        await thing.start()

    # -- load

    async def _load(self) -> None:
        while True:
            self._send(burst=False)
            await asyncio.sleep(self._random.expovariate(PER_SECOND))

    def _send(self, *, burst: bool) -> None:
        task = asyncio.create_task(self._ask(burst))
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _ask(self, burst: bool) -> None:
        """One client; each has a prompt, and so a text, of its own."""
        assert self._balancer is not None
        self._number += 1
        messages = [{"role": "user", "content": f"Count to {self._number}, said client {burst}"}]
        outcome = Outcome(burst, time.monotonic(), expected_text(messages, length=TOKENS))
        stream = self._random.random() < 0.75
        for _ in range(1 + REFUSALS_OBEYED):
            sent = time.monotonic()
            answer = await self._balancer.ask(messages=messages, stream=stream)
            answer.sent = sent
            outcome.answers.append(answer)
            if not _is_refusal(answer):
                break
            await asyncio.sleep(answer.retry_after or 1.0)
        self.outcomes.append(outcome)

    def _write_fleet(self) -> None:
        lines = ["[[models]]", f'id = "{MODEL}"', 'revision = "r1"', "context_tokens = 131072"]
        for name in sorted(set(DATACENTERS)):
            lines += ["[[datacenters]]", f'id = "{name}"']
        for number, (engine, name) in enumerate(zip(self.engines, DATACENTERS, strict=True)):
            lines += [
                "[[deployments]]", f'id = "{name}-{number}"', f'model = "{MODEL}"',
                f'datacenter = "{name}"', 'engine = "vllm"', 'upstream_model = "echo"',
                f"base_url = {json.dumps(engine.base_url)}", f"slots = {engine.slots}",
            ]  # fmt: skip
        self._config.write_text("\n".join(lines) + "\n")


def count(world: World, seed: int, seconds: float, faults: int) -> Count:
    """Judge every request by the rules of the package."""
    found = Count(seed, seconds, faults, connections_refused=world.connections_refused)
    for outcome in world.outcomes:
        found.requests += 1
        found.refusals += outcome.refusals
        found.slowest = max(found.slowest, outcome.last.seconds)
        if outcome.word == "complete":
            found.complete += 1
        elif outcome.word == "error" and _was_lost(outcome.last, world.killed):
            found.lost += 1
        elif _is_refusal(outcome.last) and _in_burst(outcome, world.bursts):
            found.burst_refused += 1
        else:
            found.bad.append(f"{outcome.began - world.began:.1f} s: {_describe(outcome)}")
    if world.unanswered:
        found.bad.append(f"{world.unanswered} requests had no end")
    for number, engine in enumerate(world.engines):
        found.most[f"{DATACENTERS[number]}-{number}"] = engine.most
        if engine.most > engine.slots:
            found.bad.append(
                f"{DATACENTERS[number]}-{number} had {engine.most} requests in {engine.slots} slots"
            )
        if engine.untold:
            found.bad.append(f"{DATACENTERS[number]}-{number} did not say how many it had")
    return found


def _is_refusal(answer: Answer) -> bool:
    return answer.status in (429, 503) and answer.retry_after is not None


def _in_burst(outcome: Outcome, bursts: list[float]) -> bool:
    """Whether more was wanted than there are slots while this request was refused."""
    return any(at <= outcome.last.ended and outcome.began <= at + BURST_SECONDS for at in bursts)


def _was_lost(answer: Answer, killed: list[tuple[float, str]]) -> bool:
    """Whether the gateway that held the request was killed while it did."""
    slack = 0.05  # between the kill and the client's notice of it
    return any(
        name == answer.gateway and answer.sent <= at + slack and at <= answer.ended
        for at, name in killed
    )


def _describe(outcome: Outcome) -> str:
    last = outcome.last
    words = f"{len(last.text.split())} of {TOKENS} words"
    kind = "burst request" if outcome.burst else "request"
    return (
        f"{outcome.word}: {kind} to {last.gateway}, status {last.status}, {words},"
        f" after {last.seconds:.1f} s: {last.error}"
    )
