"""The scenarios of Failover Bench (methodology 0.1, profile full) with its limits.

Its `primary` and `fallback` are models of one provider; ours are deployments of one model in
two datacenters, the primary being the faster one. Its checks, advice among them, keep their
names. Sources: scenarios/catalogue.yaml and failoverbench/runner.py of failoverbench.

S01 and S03 advise to ask the same upstream again. They are played twice: with a second
deployment, and as `S01a` and `S03a` where the primary is the model's only one, as it is there.
"""

from __future__ import annotations

import asyncio
import time

from prime_inference.bench.faults.client import MODEL, Answer
from prime_inference.bench.faults.scenario import Scenario, Scene, alive, call, judge
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import EXPECTED, Setting, Stage, staged

TWO = Setting()
ALONE = Setting(("primary",))  # as there: its fallback is another model
SMALL_CONTEXT = Setting(context_tokens={"primary": 4096})  # the model's own is 131,072


def _at_most(finding: Finding, stage: Stage, most: int) -> None:
    found = f"{stage.primary.attempts} on the primary"
    finding.check("bounded_attempts", stage.primary.attempts <= most, found)


def _within(finding: Finding, stage: Stage, seconds: float, most: int) -> None:
    times = [seen.received_at for seen in stage.primary.seen]
    early = sum(at - times[0] < seconds for at in times) if times else 0
    finding.check("no_hammer", early <= most, f"{early} in the first {seconds:g} s")


def _retried(finding: Finding, stage: Stage, name: str) -> None:
    attempts = stage.primary.attempts
    finding.check(name, attempts >= 2, f"{attempts} on the primary", advice=True)


def _once(finding: Finding, stage: Stage) -> None:
    attempts = stage.primary.attempts
    finding.check("no_same_model_retry", attempts == 1, f"{attempts} on the primary")


def _limit(
    finding: Finding, name: str, answer: Answer, most: float, *, advice: bool = False
) -> None:
    finding.check(name, answer.seconds <= most, f"{answer.seconds:.1f} s", advice=advice)


async def s01(scene: Scene, setting: Setting = TWO) -> Finding:
    """A 429 that names a time is waited for, or another deployment answers; no tight loop."""
    finding = Finding()
    async with staged(scene.folder, setting) as stage:
        stage.primary.engine.behave("s01")
        await call(stage, finding, 20)
        _retried(finding, stage, "retried")
        times = [seen.received_at for seen in stage.primary.seen]
        gap = times[1] - times[0] if len(times) > 1 else None
        found = "no second attempt" if gap is None else f"{gap:.2f} s"
        finding.check("retry_after_honoured", gap is not None and gap >= 1.8, found, advice=True)
        _within(finding, stage, 1.5, 2)
    return finding


async def s01_alone(scene: Scene) -> Finding:
    """A 429 that names a time, from a model's only deployment, is waited out."""
    return await s01(scene, ALONE)


async def s02(scene: Scene) -> Finding:
    """Refusals for want of capacity that never end do not bring a storm of attempts."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s02")
        await call(stage, finding, 40)
        _within(finding, stage, 3, 4)
        _at_most(finding, stage, 6)
    return finding


async def s03(scene: Scene, setting: Setting = TWO) -> Finding:
    """One 500 is not seen by the client."""
    finding = Finding()
    async with staged(scene.folder, setting) as stage:
        stage.primary.engine.behave("s03")
        await call(stage, finding, 20)
        _retried(finding, stage, "same_provider_retry")
    return finding


async def s03_alone(scene: Scene) -> Finding:
    """After one 500 a model's only deployment is asked again, and the client sees nothing."""
    return await s03(scene, ALONE)


async def s04(scene: Scene) -> Finding:
    """A deployment that answers 503 for good is left within the retry budget."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s04")
        await call(stage, finding, 40)
        _at_most(finding, stage, 6)
    return finding


async def s05(scene: Scene) -> Finding:
    """A connection that is reset before any answer is not seen by the client."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("reset.first-1")
        await call(stage, finding, 20)
    return finding


async def s06(scene: Scene) -> Finding:
    """An engine that never answers is left when the clock of the first token is out."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s06")
        answer = await call(stage, finding, 130)
        _limit(finding, "within_budget", answer, 100)
        attempts = stage.primary.attempts
        found = f"{attempts} on the primary"
        finding.check("silent_route_not_retried", attempts <= 1, found, advice=True)
    return finding


async def s07(scene: Scene) -> Finding:
    """A first token that takes 20 s is not waited for while another deployment is free."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s07")
        answer = await call(stage, finding, 60)
        _limit(finding, "ttft_limit", answer, 15, advice=True)
    return finding


async def s08(scene: Scene) -> Finding:
    """A stream that is cut after 40 of 60 tokens goes on on the other deployment."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s08")
        await call(stage, finding, 40)
    return finding


async def s09(scene: Scene) -> Finding:
    """A stream that falls silent after 20 tokens goes on on the other deployment."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s09")
        answer = await call(stage, finding, 70)
        _limit(finding, "bounded", answer, 45)
        await alive(stage, finding)
    return finding


async def s10(scene: Scene) -> Finding:
    """An event that is no JSON neither reaches the client nor ends its answer."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s10")
        await call(stage, finding, 30)
        found = finding.outcome
        finding.check("recovered_in_place", finding.rescued, found, advice=True)
        await alive(stage, finding)
    return finding


async def s11(scene: Scene) -> Finding:
    """A stream without [DONE] is ended for the client, with its usage."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s11")
        answer = await call(stage, finding, 30)
        _limit(finding, "prompt_finalise", answer, 8)
        finding.check("usage_reported", bool(answer.usage), answer.usage, advice=True)
    return finding


async def s12(scene: Scene) -> Finding:
    """A prompt too long for one deployment goes to one with the model's whole context."""
    finding = Finding()
    async with staged(scene.folder, SMALL_CONTEXT) as stage:
        stage.primary.engine.behave("s12")
        await call(stage, finding, 20)
        _once(finding, stage)
    return finding


async def s13(scene: Scene) -> Finding:
    """A request that a content filter refused is refused, not carried elsewhere."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s13")
        answer = await call(stage, finding, 20)
        _once(finding, stage)
        finding.rescued = finding.outcome == "error"
        found = f"{answer.status}, {stage.fallback.attempts} on the fallback: {answer.error}"
        finding.check("not_routed_around", not stage.fallback.attempts, found, advice=True)
    return finding


async def s14(scene: Scene) -> Finding:
    """An answer cut in the middle goes on although the other deployment takes no prefill."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave("s08")
        stage.fallback.engine.behave("s14")
        answer = await call(stage, finding, 40)
        masked = not answer.success and "prefill" in answer.error
        finding.check("no_prefill_masking", not masked, answer.error or "no error")
    return finding


async def s15(scene: Scene) -> Finding:
    """While the primary is down everything is served; within 30 s of its return it serves."""
    down, count, every = (6.0, 10, 1.2) if scene.quick else (60.0, 20, 4.0)
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        stage.primary.engine.behave(f"status-503.for-{down:.0f}s")
        began, began_at = time.monotonic(), time.time()
        answers = []
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number * every - time.monotonic()))
            sent = time.monotonic() - began
            answers.append((sent, await stage.ask()))
        served = [answer for sent, answer in answers if sent < down and answer.success]
        during = sum(sent < down for sent, _ in answers)
        first_down = next((s.received_at for s in stage.primary.seen), began_at)
        back = [
            seen.received_at - first_down - down
            for seen in stage.primary.seen
            if not seen.behaviour and seen.status == 200
        ]
        for _, answer in answers:
            if answer.outcome(EXPECTED) != "complete":
                judge(finding, answer)
                break
        else:
            judge(finding, answers[-1][1])
        probes = stage.primary.attempts
        finding.attempts = stage.attempts
        finding.outcome = f"{len(served)}/{during} served in outage"
        finding.seconds = max(answer.seconds for _, answer in answers)
        finding.check("served_during_outage", len(served) == during, finding.outcome)
        found = f"back after {min(back):+.1f} s" if back else "never used again"
        finding.check("recovered", bool(back) and min(back) <= 30, found)
        finding.check("probe_discipline", probes <= 2 * count, f"{probes} on the primary")
        if back:
            finding.outcome += f", {found}"
    return finding


async def s16(scene: Scene) -> Finding:
    """What failed is not accounted: one generation, the deployment that answered, its usage."""
    finding = Finding()
    async with staged(scene.folder, TWO) as stage:
        before = await _generations(stage)
        stage.primary.engine.behave("s16")
        answer = await call(stage, finding, 40)
        _at_most(finding, stage, 6)
        finding.check("reports_model", answer.model == MODEL, answer.model)
        finding.check("usage_present", bool(answer.usage), answer.usage, advice=True)
        written = (await _generations(stage))[len(before) :]
        names = [str(one["deployment"]) for one in written]
        finding.check("one_account", names == [stage.fallback.name], names)
    return finding


async def _generations(stage: Stage) -> list[dict[str, object]]:
    """The gateway's account; asking for metrics makes it write what it has gathered."""
    await stage.metric("prime")
    return stage.gateway.generations()


PUBLISHED = (
    Scenario("S01", "429 with Retry-After", s01),
    Scenario("S01a", "429 with Retry-After, nowhere else to go", s01_alone),
    Scenario("S02", "429 without Retry-After, persistent", s02),
    Scenario("S03", "500 once, then healthy", s03),
    Scenario("S03a", "500 once, nowhere else to go", s03_alone),
    Scenario("S04", "503 persistent", s04),
    Scenario("S05", "TCP reset before headers", s05),
    Scenario("S06", "No response at all", s06),
    Scenario("S07", "Slow first token", s07),
    Scenario("S08", "Stream cut mid-answer", s08),
    Scenario("S09", "Stream stalls", s09),
    Scenario("S10", "Malformed chunk in the stream", s10),
    Scenario("S11", "Stream ends without [DONE]", s11),
    Scenario("S12", "Context length exceeded", s12),
    Scenario("S13", "Content-filter rejection", s13),
    Scenario("S14", "Fallback target rejects prefill", s14),
    Scenario("S15", "Primary flaps: down, then healthy", s15),
    Scenario("S16", "Fail-over accounting", s16),
)
