"""A scenario: a function that plays a fault and says what it found."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_inference.bench.faults.client import Answer
from prime_inference.bench.faults.scorecard import Finding
from prime_inference.bench.faults.stage import EXPECTED, Stage

Play = Callable[["Scene"], Awaitable[Finding]]


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a scenario may write, and whether it is to be short."""

    folder: Path
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """`play` with its place in the scorecard; a `heavy` one has the machine to itself."""

    id: str
    title: str
    play: Play
    heavy: bool = False

    @property
    def proves(self) -> str:
        """The first paragraph of its docstring, in one line."""
        text = inspect.getdoc(self.play) or ""
        return " ".join(text.partition("\n\n")[0].split())


async def call(stage: Stage, finding: Finding, within: float, **options: Any) -> Answer:
    """Ask the first gateway; a call that has not ended after `within` seconds is a hang."""
    try:
        async with asyncio.timeout(within):
            answer = await stage.ask(**options)
    except TimeoutError:
        answer = Answer(error="no end", seconds=within)
        finding.check("no_hang", False, f"no end within {within:g} s")
    else:
        finding.check("no_hang", True, f"{answer.seconds:.1f} s")
    judge(finding, answer)
    finding.attempts = stage.attempts
    finding.check("met_the_fault", stage.primary.attempts > 0, "the primary was asked")
    return answer


def judge(finding: Finding, answer: Answer, expected: str = EXPECTED) -> None:
    """Note the outcome of one answer against the text that it should have."""
    finding.outcome = answer.outcome(expected)
    finding.seconds = answer.seconds
    finding.rescued = finding.outcome == "complete"
    whole = finding.outcome in ("complete", "error")
    words = f"{len(answer.text.split())} of {len(expected.split())} words"
    found = "the whole text" if finding.rescued else f"{finding.outcome}, {words}: {answer.error}"
    finding.check("no_truncated_success", whole, found)


def judge_all(finding: Finding, answers: list[Answer], expected: str = EXPECTED) -> None:
    """The same for many answers: all have to be complete."""
    outcomes = [answer.outcome(expected) for answer in answers]
    complete = outcomes.count("complete")
    finding.outcome = f"{complete}/{len(answers)} complete"
    finding.seconds = max((answer.seconds for answer in answers), default=0.0)
    errors = {answer.error[:60] for answer in answers if answer.error}
    finding.check("all_served", complete == len(answers), "; ".join(sorted(errors)[:3]) or "all")
    false = sum(outcome not in ("complete", "error") for outcome in outcomes)
    finding.check("no_false_text", false == 0, f"{false} answers cut or wrong that look whole")


async def alive(stage: Stage, finding: Finding) -> None:
    """A healthy request is answered after the scenario."""
    for deployment in stage.deployments.values():
        deployment.engine.behave("")
    answer = await stage.ask(stream=False)
    outcome = answer.outcome(EXPECTED)
    finding.check("alive_after", outcome == "complete", answer.error or outcome)
