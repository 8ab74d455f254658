"""The coordination store away, frozen or empty, and replicas whose clocks disagree."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from prime_inference.bench.faults.client import MESSAGES, Answer
from prime_inference.bench.faults.scenario import Scenario, Scene, judge_all
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import Setting, Stage, staged
from prime_inference.bench.faults.store import Store
from prime_inference.bench.faults.traffic import Traffic, traffic
from prime_inference.engines.mock import expected_text

RATE = 15.0
THREE = Setting(("east", "west"), gateways=3, store=True, first_token=0.0, slots=48, warm_up=False)
SETTLE_SECONDS = 12.0  # a lease time and a bit: replicas hold what the traffic needs
AWAY_SECONDS = 15.0  # a lease time and a half: every block has ended meanwhile
SHORT_TOKENS = 12  # of an answer of a second, where there are many of them
SLOWER = 1.5  # times; the median of answers during a fault beside that before it


async def redis_frozen(scene: Scene) -> Finding:
    """A Redis that takes connections and never answers delays nobody and fails nobody."""

    async def play(store: Store, wait: Callable[[], Awaitable[None]]) -> None:
        store.freeze()
        await wait()
        store.thaw()

    return await _store_fault(scene, play)


async def redis_gone(scene: Scene) -> Finding:
    """Without Redis requests are served, and the slots of a deployment are not overrun."""

    async def play(store: Store, wait: Callable[[], Awaitable[None]]) -> None:
        await store.kill()
        await wait()
        await store.start()

    return await _store_fault(scene, play)


async def redis_emptied(scene: Scene) -> Finding:
    """A Redis that starts again and knows nothing grants no slot a second time."""

    async def play(store: Store, wait: Callable[[], Awaitable[None]]) -> None:
        for _ in range(3):
            await store.kill()
            await store.start()
            await asyncio.sleep(1)
        await wait()

    return await _store_fault(scene, play)


async def _store_fault(
    scene: Scene, play: Callable[[Store, Callable[[], Awaitable[None]]], Awaitable[None]]
) -> Finding:
    """Traffic from three replicas before, during and after a fault of their store."""
    finding = Finding()
    settle, away = (4.0, 4.0) if scene.quick else (SETTLE_SECONDS, AWAY_SECONDS)
    async with staged(scene.folder, THREE) as stage:
        assert stage.store is not None
        async with traffic(stage.gateways, RATE) as flow:
            await asyncio.sleep(settle)
            began = time.monotonic()
            await play(stage.store, lambda: asyncio.sleep(away))
            ended = time.monotonic()
            await asyncio.sleep(settle / 2)
        _judge(finding, stage, flow)
        during = [a.seconds for a in flow.answers if began <= a.sent < ended]
        before = [a.seconds for a in flow.answers if a.sent < began]
        finding.check("traffic_during", len(during) >= 20, f"{len(during)} requests")
        usual, found = statistics.median(before), statistics.median(during)
        held = found < SLOWER * usual
        finding.check("nobody_waits", held, f"median {found:.2f} s, {usual:.2f} s before")
    return finding


def _judge(finding: Finding, stage: Stage, flow: Traffic) -> None:
    judge_all(finding, flow.answers)
    finding.attempts = stage.attempts
    for deployment in stage.deployments.values():
        most = deployment.engine.load.most
        found = f"{most} of {deployment.slots} slots"
        finding.check(f"slots_of_{deployment.name}", most <= deployment.slots, found)


async def over_demand(scene: Scene) -> Finding:
    """Three times more requests than slots, Redis dying in between: no slot is overrun.

    Who is refused is refused at once, with a time to come back; nobody is cut.
    """
    finding = Finding()
    setting = Setting(
        ("east", "west"), gateways=3, store=True, first_token=0.0, slots=12, warm_up=False,
        pace=0.09, answer_tokens=SHORT_TOKENS,
    )  # fmt: skip
    async with staged(scene.folder, setting) as stage:
        assert stage.store is not None
        stage.forget()
        async with traffic(stage.gateways, 70.0) as flow:
            await asyncio.sleep(4 if scene.quick else 14)
            await stage.store.kill()
            await asyncio.sleep(3 if scene.quick else 14)
            await stage.store.start()
            await asyncio.sleep(2 if scene.quick else 6)
        served = [answer for answer in flow.answers if answer.success]
        refused = [answer for answer in flow.answers if not answer.success]
        rest = Finding()
        judge_all(rest, served, expected_text(MESSAGES, length=SHORT_TOKENS))
        finding.checks += rest.checks
        finding.outcome = f"{len(served)} served, {len(refused)} refused"
        finding.attempts = stage.attempts
        finding.seconds = rest.seconds
        finding.check("more_than_slots", len(refused) > len(served) / 4, finding.outcome)
        typed = all(a.status in (429, 503) and a.retry_after for a in refused)
        finding.check("typed_refusals", typed, _odd(refused))
        slowest = max((answer.seconds for answer in refused), default=0.0)
        finding.check("early_refusals", slowest < 3, f"slowest {slowest:.1f} s")
        for deployment in stage.deployments.values():
            most = deployment.engine.load.most
            found = f"{most} of {deployment.slots} slots"
            finding.check(f"slots_of_{deployment.name}", most <= deployment.slots, found)
    return finding


def _odd(refused: list[Answer]) -> str:
    odd = [a for a in refused if a.status not in (429, 503) or not a.retry_after]
    return f"{odd[0].status}: {odd[0].error}" if odd else "all have Retry-After"


def _faketime() -> Path | None:
    """The library that gives a process another clock, where the machine has it."""
    return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


async def clock_skew(scene: Scene) -> Finding:
    """Replicas an hour apart, one with a clock 1 % too fast, share slots as if they were not."""
    finding = Finding()
    library = _faketime()
    if library is None:
        finding.skipped = "needs libfaketime (Debian: apt install faketime)"
        return finding
    skews = ("+3600", "-3600", "+0 x1.01")
    setting = Setting(
        THREE.deployments,
        gateways=3,
        store=True,
        first_token=0.0,
        slots=48,
        warm_up=False,
        environments=[{"LD_PRELOAD": str(library), "FAKETIME": skew} for skew in skews],
    )
    async with staged(scene.folder, setting) as stage:
        async with traffic(stage.gateways, RATE) as flow:
            await asyncio.sleep(6 if scene.quick else 25)
        _judge(finding, stage, flow)
    return finding


STORES = (
    Scenario("F07", "Redis frozen", redis_frozen),
    Scenario("F08", "Redis gone", redis_gone),
    Scenario("F09", "Redis restarted empty, three times", redis_emptied),
    Scenario("F10", "Demand three times the slots, Redis dies", over_demand, heavy=True),
    Scenario("F11", "Clocks of replicas disagree", clock_skew),
)
