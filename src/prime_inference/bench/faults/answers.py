"""Engines whose answers are wrong."""

from __future__ import annotations

from prime_inference.bench.faults.scenario import Scenario, Scene, alive, call, judge_all
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import Setting, staged

WRONG = (
    "html", "html.status-502", "garbage", "not-http", "length-plus-9", "length-minus-9",
    "no-finish", "answer-0.no-finish", "end-after-30", "error-after-30", "huge-at-20",
    "error-after-0", "reset-after-0", "close", "status-401", "status-404",
)  # fmt: skip
RIGHT_BETWEEN = 3  # answers after each wrong one, so that no breaker opens
STRANGE = ("crlf", "cr", "comments", "chunks-1", "chunks-7", "close-after", "end-without-done")


async def wrong_answers(scene: Scene) -> Finding:
    """HTML, garbage, lengths that lie, errors in the stream: the client sees none of it."""
    finding = Finding()
    async with staged(scene.folder, Setting(first_token=0.02)) as stage:
        answers, met = [], 0
        for behaviour in WRONG:
            for stream in (True, False):
                stage.forget()
                stage.primary.engine.behave(f"{behaviour}.first-1")
                answers.append(await stage.ask(stream=stream))
                met += any(seen.behaviour for seen in stage.primary.seen)
                for _ in range(RIGHT_BETWEEN):
                    await stage.ask(max_tokens=1)
        judge_all(finding, answers)
        finding.attempts = f"{met} faults met"
        for behaviour, answer in zip([b for b in WRONG for _ in "sw"], answers, strict=True):
            if not answer.success:
                finding.check(behaviour, False, answer.error)
        finding.check("met_the_faults", met == len(answers), f"{met} of {len(answers)}")
    return finding


async def strange_answers(scene: Scene) -> Finding:
    """Streams that are odd and right (line ends, comments, byte by byte) are answers."""
    finding = Finding()
    async with staged(scene.folder, Setting()) as stage:
        answers = []
        for behaviour in STRANGE:
            stage.primary.engine.behave(behaviour)
            answers.append(await stage.ask())
        judge_all(finding, answers)
        finding.attempts = stage.attempts
        found = f"{stage.fallback.attempts} on the fallback"
        finding.check("stays_on_the_primary", not stage.fallback.attempts, found)
    return finding


async def dies_again(scene: Scene) -> Finding:
    """An answer whose second and third deployment die too goes on all the same."""
    finding = Finding()
    async with staged(scene.folder, Setting(("primary", "fallback", "third"))) as stage:
        stage.primary.engine.behave("cut-after-20")
        for name in ("fallback", "third"):
            stage.deployments[name].engine.behave("cut-after-15.first-1")
        await call(stage, finding, 40)
        total = sum(deployment.attempts for deployment in stage.deployments.values())
        finding.check("died_three_times", total == 4, stage.attempts)
        await alive(stage, finding)
    return finding


async def only_one(scene: Scene) -> Finding:
    """A model's only deployment that says 429 for 2 s and fails once is waited for.

    S01 and S03 with nowhere else to go: what the published advice asks for.
    """
    finding = Finding()
    async with staged(scene.folder, Setting(("primary",))) as stage:
        stage.primary.engine.behave("s01")
        answers = [await stage.ask()]
        times = [seen.received_at for seen in stage.primary.seen]
        gap = times[1] - times[0] if len(times) > 1 else 0.0
        stage.primary.engine.behave("s03")
        answers.append(await stage.ask())
        judge_all(finding, answers)
        finding.attempts = stage.attempts
        finding.check("retry_after_honoured", 1.8 <= gap < 4, f"gap {gap:.2f} s")
        found = f"{stage.primary.attempts} attempts"
        finding.check("same_provider_retry", stage.primary.attempts == 4, found)
    return finding


ANSWERS = (
    Scenario("F18", "Wrong answers: HTML, garbage, lies", wrong_answers),
    Scenario("F19", "Strange answers that are right", strange_answers),
    Scenario("F20", "The second and third deployment die too", dies_again),
    Scenario("F21", "429 and 500 from the only deployment", only_one),
)
