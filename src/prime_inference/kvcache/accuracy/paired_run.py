"""A run of two endpoints over the same questions: what is asked, answered, compared, reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from prime_inference.kvcache.accuracy.comparison import Cell, compare, write_report
from prime_inference.kvcache.accuracy.endpoints import (
    ANSWER_TOKENS,
    AnswerFile,
    Endpoint,
    RunSettings,
    ask_all,
)
from prime_inference.kvcache.accuracy.tasks import TASKS, make_questions


def compare_endpoints(
    reference: Endpoint,
    candidate: Endpoint,
    out: Path,
    *,
    seed: int,
    lengths: tuple[int, ...],
    questions: int,
    reasoning_tokens: int,
    concurrency: int,
    progress: Callable[[int, int], None],
) -> list[Cell]:
    """Ask `questions` of each task and length; answers and report are in the folder `out`.

    Answers that are there already are not asked for again. Raises RunMismatch, OSError, and an
    ExceptionGroup of EndpointFailed.
    """
    both = (reference, candidate)
    models = {one.side: one.model for one in both}
    urls = {one.side: one.base_url for one in both}
    max_tokens = ANSWER_TOKENS + reasoning_tokens
    settings = RunSettings(seed, lengths, questions, TASKS, models, urls, max_tokens)
    out.mkdir(parents=True, exist_ok=True)
    file = AnswerFile(out / "answers.jsonl", settings)
    asked = list(make_questions(seed, lengths, questions))
    asyncio.run(
        ask_all(
            both, asked, file, concurrency=concurrency, max_tokens=max_tokens, progress=progress
        )
    )
    cells = compare(asked, file.answers)
    write_report(out, cells)
    return cells
