"""Paired statistics of two endpoints' answers, and the report of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from prime_inference.kvcache.accuracy.endpoints import Answer
from prime_inference.kvcache.accuracy.tasks import Question

RESAMPLES: Final = 10_000  # of the bootstrap: the interval's ends are then stable to 1 %
CONFIDENCE: Final = 0.95
# Above this share of answers that are empty or cut short, on either side, a comparison says how
# far an endpoint answers and not how well: the bound is as wide as a loss that should be seen.
UNANSWERED_LIMIT: Final = 0.05
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Cell:
    """One task at one length (`tokens` 0: all lengths): mean scores and their difference.

    `low` and `high` bound the mean of candidate minus reference, by a paired bootstrap over
    questions at 95 % confidence. The `unanswered` were empty or cut short; they score what
    their text is worth, mostly 0.
    """

    task: str
    tokens: int
    questions: int
    reference: float
    candidate: float
    low: float
    high: float
    reference_unanswered: int
    candidate_unanswered: int

    @property
    def conclusive(self) -> bool:
        """Whether both sides answered enough for a verdict."""
        most = max(self.reference_unanswered, self.candidate_unanswered)
        return most <= UNANSWERED_LIMIT * self.questions

    @property
    def worse(self) -> bool:
        """Whether the candidate is worse beyond chance."""
        return self.conclusive and self.high < 0


def compare(
    questions: Sequence[Question], answers: dict[tuple[str, str], Answer], *, seed: int = 0
) -> list[Cell]:
    """Every task and length, every task, and all together; questions without both answers are
    left out. A cell without questions is not listed."""
    pairs = [
        (one, answers["reference", one.id], answers["candidate", one.id])
        for one in questions
        if ("reference", one.id) in answers and ("candidate", one.id) in answers
    ]
    tasks = list(dict.fromkeys(one.task for one, _, _ in pairs))
    lengths = sorted({one.tokens for one, _, _ in pairs})
    groups = [(task, tokens) for task in [*tasks, ALL] for tokens in [*lengths, 0]]
    rng = np.random.default_rng(seed)
    cells = []
    for task, tokens in groups:
        chosen = [
            (a, b) for one, a, b in pairs if task in (one.task, ALL) and tokens in (one.tokens, 0)
        ]
        if chosen:
            cells.append(_cell(rng, task, tokens, chosen))
    return cells


def _cell(
    rng: np.random.Generator, task: str, tokens: int, pairs: Sequence[tuple[Answer, Answer]]
) -> Cell:
    scores = np.array([(a.score, b.score) for a, b in pairs])
    difference = scores[:, 1] - scores[:, 0]
    drawn = rng.integers(0, len(difference), (RESAMPLES, len(difference)))
    means = difference[drawn].mean(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    reference, candidate = scores.mean(axis=0)
    return Cell(
        task,
        tokens,
        len(scores),
        float(reference),
        float(candidate),
        float(low),
        float(high),
        sum(a.unanswered for a, _ in pairs),
        sum(b.unanswered for _, b in pairs),
    )


def write_report(folder: Path, cells: Sequence[Cell]) -> list[Path]:
    """`report.json`, `report.md` and, where matplotlib is installed, `scores.png`."""
    written = [folder / "report.json", folder / "report.md"]
    written[0].write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")
    written[1].write_text(markdown(cells))
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:  # the extra `bench` brings it; the tables say the same
        return written
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="tokens of context", ylabel="score")
    for index, task in enumerate(dict.fromkeys(cell.task for cell in cells if cell.task != ALL)):
        of_task = [cell for cell in cells if cell.task == task and cell.tokens]
        lengths = [cell.tokens for cell in of_task]
        colour = f"C{index}"
        axes.plot(lengths, [cell.reference for cell in of_task], "o--", color=colour, alpha=0.6)
        axes.plot(lengths, [cell.candidate for cell in of_task], "s-", color=colour, label=task)
    axes.set_ylim(-0.02, 1.02)
    axes.legend(title="solid: candidate, dashed: reference")
    figure.savefig(folder / "scores.png", dpi=120)
    return [*written, folder / "scores.png"]


def markdown(cells: Sequence[Cell]) -> str:
    """The cells as a table."""
    lines = [
        "| task | tokens | questions | reference | candidate | difference, 95 % | unanswered |",
        "|---|---:|---:|---:|---:|---|---:|",
    ]
    for cell in cells:
        verdict = " worse" if cell.worse else "" if cell.conclusive else " no verdict"
        lines.append(
            f"| {cell.task} | {cell.tokens or ALL} | {cell.questions} | {cell.reference:.3f} | "
            f"{cell.candidate:.3f} | {cell.low:+.3f} to {cell.high:+.3f}{verdict} | "
            f"{cell.reference_unanswered} / {cell.candidate_unanswered} |"
        )
    return "\n".join(lines) + "\n"
