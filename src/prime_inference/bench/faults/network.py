"""Networks and engines that are neither up nor down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from prime_inference.bench.faults.client import MESSAGES
from prime_inference.bench.faults.replica import Clocks
from prime_inference.bench.faults.scenario import Scenario, Scene, judge, judge_all
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import (
    CONTEXT_TOKENS,
    EXPECTED,
    Deployment,
    Setting,
    Stage,
    eventually,
    staged,
)
from prime_inference.bench.faults.traffic import traffic
from prime_inference.engines.mock import expected_text
from prime_inference.engines.mock.process import MockProcess
from prime_inference.engines.mock.text import ANSWER_TOKENS

TWO_LINKED = Setting(
    ("east", "west"),
    gateways=2,
    store=True,
    links=True,
    slots=512,  # a quarter of them for the first 10 s, while the store learns
    first_token=0.0,
    warm_up=False,
)
RATE = 15.0  # requests a second: both cores of a small machine have time to spare


async def flapping(scene: Scene) -> Finding:
    """Two datacenters that go and come in turn, never both away, cost no request.

    Each is away for a second and a half of every four; an answer takes one.
    """
    finding = Finding()
    async with staged(scene.folder, TWO_LINKED) as stage:
        links = [stage.deployments[name].link for name in ("east", "west")]
        async with traffic(stage.gateways, RATE) as flow:
            for turn in range(6 if scene.quick else 16):
                link = links[turn % 2]
                assert link is not None
                await link.refuse()
                await asyncio.sleep(1.5)
                await link.heal()
                await asyncio.sleep(0.5)
        judge_all(finding, flow.answers)
        finding.attempts = stage.attempts
    return finding


async def brown_out(scene: Scene) -> Finding:
    """A datacenter that turned slow is used less; its breaker stays closed: slow is not dead."""
    finding = Finding()
    async with staged(scene.folder, TWO_LINKED) as stage:
        east = stage.deployments["east"]
        async with traffic(stage.gateways, RATE) as flow:
            await asyncio.sleep(1)
            east.engine.behave("slow-first-3s")
            await asyncio.sleep(3)
            stage.forget()
            await asyncio.sleep(4 if scene.quick else 12)
            slow, quick = east.attempts, stage.deployments["west"].attempts
        judge_all(finding, flow.answers)
        finding.attempts = f"{slow}e/{quick}w"
        share = slow / max(1, slow + quick)
        finding.check("traffic_moves", share < 0.25, f"{share:.0%} went to the slow one")
        states = [(await stage.breakers(gateway))["east"] for gateway in stage.gateways]
        closed = all(state == "closed" for state in states)
        finding.check("breaker_stays_closed", closed, ", ".join(states))
    return finding


async def partition(scene: Scene) -> Finding:
    """A datacenter that nothing reaches any more costs no request; it is used again after.

    Bytes sink without an answer or a refusal. What was being streamed goes on elsewhere.
    """
    finding = Finding()
    away = 4.0 if scene.quick else 15.0
    async with staged(scene.folder, TWO_LINKED) as stage:
        east = stage.deployments["east"]
        assert east.link is not None
        async with traffic(stage.gateways, RATE, sessions=True) as flow:
            await asyncio.sleep(1.5)
            east.link.black_hole()
            await asyncio.sleep(away)
            await east.link.heal()
            stage.forget()
            back = await eventually(lambda: east.attempts > 2, 40)
        judge_all(finding, flow.answers)
        finding.attempts = stage.attempts
        found = "never" if back is None else f"after {back:.1f} s"
        finding.check("used_again", back is not None, found)
        slowest = max(answer.seconds for answer in flow.answers)
        finding.check("bounded", slowest < 2 * 10 + 5, f"slowest {slowest:.1f} s")
    return finding


HANGING = Setting(
    ("east", "west"),
    clocks=Clocks(connect=5.0, first_token=120.0, idle=60.0),  # the gateway's own
    pace=0.1,
    first_token=0.0,
    answer_tokens=ANSWER_TOKENS,
    warm_up=False,  # nobody knows yet what late is, so nothing is hedged
)
VERDICT_SECONDS = 4 * (1.2 * 5.0 + 2.0)  # three silent looks, after one with signs of life
THEN_SECONDS = 5.0 + ANSWER_TOKENS * 0.1 + 4.0  # silent since, the answer, and a busy machine


async def engine_hangs(scene: Scene) -> Finding:
    """An engine that hangs without a word (SIGSTOP) holds nobody until the clocks are out.

    With the clocks of an operator who has set none, 120 s to the first token. Active health
    finds it down; the streams that it had begun and the requests that wait there go on at the
    other deployment, and its breaker counts nothing.
    """
    finding = Finding()
    process = MockProcess("echo", context_tokens=CONTEXT_TOKENS, pace_ms=100)
    async with staged(scene.folder, HANGING) as stage:
        await process.start()
        assert process.pid is not None
        try:
            await _rename(stage, stage.deployments["east"], process.base_url)
            asked = [asyncio.create_task(stage.ask()) for _ in range(8)]
            await asyncio.sleep(2)  # they are being streamed
            os.kill(process.pid, signal.SIGSTOP)
            asked += [asyncio.create_task(stage.ask(stream=bool(n % 2))) for n in range(8)]
            await asyncio.sleep(2)
            held = (await stage.fleet(stage.gateway))[0]["in_flight"]
            answers = list(await asyncio.gather(*asked))
            east = (await stage.fleet(stage.gateway))[0]
        finally:
            os.kill(process.pid, signal.SIGCONT)
            await process.stop()
        judge_all(finding, answers, expected_text(MESSAGES))
        finding.attempts = f"{held}e/{stage.deployments['west'].attempts}w"
        finding.check("met_the_fault", held >= 2, f"{held} were held by the engine")
        most = VERDICT_SECONDS + THEN_SECONDS
        finding.check("in_time_of_the_checks", finding.seconds <= most, f"{finding.seconds:.1f} s")
        found = f"{east['failed']} failed, breaker {east['breaker']}, {east['state']}"
        told = (east["failed"], east["breaker"], east["state"])
        finding.check("found_by_checks_alone", told == (0, "closed", "unhealthy"), found)
    return finding


async def kept_connections(scene: Scene) -> Finding:
    """A kept connection that is closed just as it is used again costs no attempt elsewhere."""
    finding = Finding()
    async with staged(scene.folder, Setting()) as stage:
        answers = []
        for number in range(20):
            stage.primary.engine.behave("reset.first-1" if number % 2 else "close.first-1")
            answers.append(await stage.ask())
        judge_all(finding, answers)
        finding.attempts = stage.attempts
        found = f"{stage.fallback.attempts} of 20 requests"
        finding.check("stays_on_the_primary", not stage.fallback.attempts, found)
    return finding


async def late_answers(scene: Scene) -> Finding:
    """A far datacenter (80 ms each way) serves whole answers and is not taken for dead."""
    finding = Finding()
    async with staged(scene.folder, TWO_LINKED) as stage:
        east, west = stage.deployments["east"], stage.deployments["west"]
        assert east.link is not None
        assert west.link is not None
        east.link.delay = 0.16
        await west.link.refuse()
        answers = list(await asyncio.gather(*(stage.ask() for _ in range(10))))
        judge_all(finding, answers)
        finding.attempts = stage.attempts
    return finding


async def dns_change(scene: Scene) -> Finding:
    """A deployment whose name comes to mean another address is found there without a restart.

    The gateway runs in a mount namespace of its own, so that its /etc/hosts can be changed.
    """
    finding = Finding()
    hosts = scene.folder / "hosts"
    scene.folder.mkdir(parents=True, exist_ok=True)
    hosts.write_text("127.0.0.1 localhost\n127.0.0.1 engine.test\n")
    prefix = (
        "unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts,
    )  # fmt: skip
    if not await _runs(*prefix, "true"):
        finding.skipped = "needs a mount namespace: run it as root"
        return finding
    setting = Setting(("old",), prefix=prefix, warm_up=False)
    async with staged(scene.folder, setting) as stage:
        old = stage.deployments["old"]
        port = int(old.engine.base_url.rpartition(":")[2].split("/")[0])
        await _rename(stage, old, f"http://engine.test:{port}/v1")
        before = await stage.ask()
        finding.check("before", before.outcome(EXPECTED) == "complete", before.error or "served")
        moved = Deployment("new", "dc-new", type(old.engine)(answer_tokens=60, pace=0.016))
        await moved.engine.start("127.0.0.2", port)
        try:
            hosts.write_text("127.0.0.1 localhost\n127.0.0.2 engine.test\n")
            served_by_old = old.attempts
            await old.engine.stop()
            answer = await stage.ask()
            judge(finding, answer)
            finding.attempts = f"{served_by_old}o/{moved.attempts}n"
            finding.check("served_by_the_new", moved.attempts == 1, f"{moved.attempts} requests")
        finally:
            await moved.engine.stop()
    return finding


async def _rename(stage: Stage, deployment: Deployment, base_url: str) -> None:
    """Start the gateway anew with another address for a deployment."""
    deployment.base_url = base_url
    stage.write_fleet()
    await stage.gateway.kill()
    await stage.gateway.start()
    stage.forget()


async def _runs(*command: object) -> bool:
    with contextlib.suppress(OSError):
        process = await asyncio.create_subprocess_exec(
            *map(str, command), stderr=asyncio.subprocess.DEVNULL
        )
        return await process.wait() == 0
    return False


NETWORK = (
    Scenario("F01", "Both datacenters flap, never both away", flapping),
    Scenario("F02", "Brown-out: slow, not dead", brown_out),
    Scenario("F03", "A datacenter is partitioned away and back", partition),
    Scenario("F23", "An engine hangs, all clocks as they are", engine_hangs),
    Scenario("F04", "Kept connection closed as it is reused", kept_connections),
    Scenario("F05", "A far datacenter alone is left", late_answers),
    Scenario("F06", "DNS change", dns_change),
)
