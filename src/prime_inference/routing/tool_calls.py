"""Ranks behind the others the deployments of a model that get tool calls wrong: pure.

Each deployment is compared with the best of its model by what was found in its answers of the
last half hour. One that is surely worse comes after the others, for requests with tools only;
when it has gone without such requests long enough, nothing is known of it any more and it is
tried again. Nothing here takes a deployment away, and the best is never worse than itself.

One caller's tools that no model could call rightly say nothing of a deployment. So a deployment
has to be worse without the caller most of whose calls were wrong there, unless that leaves too
little to judge by.

The difference of two rates and its standard error are those of Agresti and Caffo (2000): one
right and one wrong answer are added to each, so that few answers and rates of 0 are no trap.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prime_inference.domain.tool_verdict import ToolVerdict

WINDOW_S = 30 * 60.0
"""Answers older than this are forgotten: an engine that was put right is believed after it, and
one that was not costs `LEAST_ANSWERS` each time."""

MOST_ANSWERS = 1000  # of a deployment: a rate of 10 % is known to 1 %
LEAST_ANSWERS = 30  # all right, they rule out a rate above 10 % (95 %, the rule of three)

WORSE_AT = 4.0
"""Standard errors. Looked at after each wrong answer, 2 to 16 equal deployments that are wrong in
1 to 20 % were taken for different 0 to 9 times in a million answers; at 3 errors, 0 to 184 times.
At 4, one that is always wrong is found after 30 answers, 20 % after 90, 5 % after 470."""

WELL_AT = 2.0  # standard errors: half as sure it stays behind, so that it does not flap
LEAST_DIFFERENCE = 0.02  # of the rates; a session's KV cache is worth more than less of it
LEAST_DIFFERENCE_TO_STAY = LEAST_DIFFERENCE / 2

Now = Callable[[], float]


@dataclass(frozen=True, slots=True)
class RankChange:
    """A deployment is ranked behind the others from now on, or no more. Rates are from 0 to 1."""

    model: str
    deployment: str
    behind: bool
    rate: float | None  # its own; None: too few answers to tell
    best: float | None  # of the best deployment of the model


@dataclass(frozen=True, slots=True)
class Tally:
    """Answers with tool calls, and how many of them had a wrong one."""

    answers: int
    wrong: int

    @property
    def rate(self) -> float | None:
        return self.wrong / self.answers if self.answers else None

    @property
    def adjusted(self) -> float:
        return (self.wrong + 1) / (self.answers + 2)

    @property
    def variance(self) -> float:
        return self.adjusted * (1 - self.adjusted) / (self.answers + 2)

    def is_above(self, best: Tally, errors: float, least: float) -> bool:
        """Whether its rate is higher by so many standard errors and by at least `least`."""
        difference = self.adjusted - best.adjusted
        return difference > least and difference > errors * math.sqrt(self.variance + best.variance)


class AnswerRecord:
    """The latest answers of one deployment."""

    __slots__ = ("_answers", "_by_caller", "_wrong", "_wrong_by_caller", "behind")

    def __init__(self) -> None:
        self.behind = False
        self._answers: deque[tuple[float, int, bool]] = deque()  # when, whose, whether wrong
        self._wrong = 0
        self._by_caller: Counter[int] = Counter()
        self._wrong_by_caller: Counter[int] = Counter()

    def add(self, now: float, caller: int, *, wrong: bool) -> None:
        if len(self._answers) >= MOST_ANSWERS:
            self._drop()
        self._answers.append((now, caller, wrong))
        self._by_caller[caller] += 1
        if wrong:
            self._wrong += 1
            self._wrong_by_caller[caller] += 1

    def forget(self, before: float) -> None:
        """Drop what is older."""
        while self._answers and self._answers[0][0] < before:
            self._drop()

    @property
    def total(self) -> Tally:
        return Tally(len(self._answers), self._wrong)

    @property
    def without_worst_caller(self) -> Tally:
        """What is left without the caller that has most of the wrong answers."""
        total = self.total
        if not self._wrong_by_caller:
            return total
        caller, wrong = max(self._wrong_by_caller.items(), key=lambda item: item[1])
        return Tally(total.answers - self._by_caller[caller], total.wrong - wrong)

    def is_worse_than(self, best: Tally) -> bool:
        """Whether it is to be ranked behind; one that is already has to improve by some to stop."""
        total = self.total
        if total.answers < LEAST_ANSWERS:
            return False
        errors, least = WORSE_AT, LEAST_DIFFERENCE
        if self.behind:
            errors, least = WELL_AT, LEAST_DIFFERENCE_TO_STAY
        if not total.is_above(best, errors, least):
            return False
        others = self.without_worst_caller
        return others.answers < LEAST_ANSWERS or others.is_above(best, errors, least)

    def _drop(self) -> None:
        _, caller, wrong = self._answers.popleft()
        _take_one(self._by_caller, caller)
        if wrong:
            self._wrong -= 1
            _take_one(self._wrong_by_caller, caller)


class ToolCallRanking:
    """Which deployments requests with tools are offered last, as this replica has seen them.

    Implements `ports.tool_verdicts.ToolVerdictSink`. `now` is seconds on a clock that never goes
    back.
    """

    def __init__(self, now: Now) -> None:
        self.changes: Counter[tuple[str, bool]] = Counter()  # by deployment, and whether behind
        self.on_change: Callable[[RankChange], None] = _nobody
        self._now = now
        self._models: dict[str, dict[str, AnswerRecord]] = {}
        self._behind: set[str] = set()

    def judged(self, verdict: ToolVerdict) -> None:
        """Take an answer into account, unless nobody can tell whether it was right."""
        wrong = bool(verdict.errors) or verdict.missing
        if verdict.only_cut or not (wrong or verdict.judged):
            return
        records = self._models.setdefault(verdict.model, {})
        record = records.get(verdict.deployment)
        if record is None:
            record = records[verdict.deployment] = AnswerRecord()
        record.add(self._now(), verdict.caller, wrong=wrong)
        if wrong:
            self._compare(verdict.model)

    def look(self) -> None:
        """Forget what is old and compare again; for a clock to call, every second or so."""
        for model in list(self._models):
            self._compare(model)

    def is_behind(self, deployment: str) -> bool:
        """Whether requests with tools are offered it last."""
        return deployment in self._behind

    def ranked(self, offered: Sequence[str]) -> list[str]:
        """`offered` (best first) with those that get calls wrong at the end."""
        if not self._behind:
            return list(offered)
        return sorted(offered, key=self._behind.__contains__)

    def best(self, offered: Sequence[str]) -> list[str]:
        """Those of `offered` that a session may have as its home; all, if all are behind."""
        if not self._behind:
            return list(offered)
        return [name for name in offered if name not in self._behind] or list(offered)

    def _compare(self, model: str) -> None:
        records = self._models[model]
        before = self._now() - WINDOW_S
        for record in records.values():
            record.forget(before)
        known = [each.total for each in records.values() if each.total.answers >= LEAST_ANSWERS]
        best = min(known, key=lambda tally: tally.adjusted) if known else None
        for name, record in records.items():
            behind = best is not None and record.is_worse_than(best)
            if behind is not record.behind:
                record.behind = behind
                self._changed(model, name, record, best)
        for name in [name for name, record in records.items() if not record.total.answers]:
            del records[name]

    def _changed(self, model: str, name: str, record: AnswerRecord, best: Tally | None) -> None:
        (self._behind.add if record.behind else self._behind.discard)(name)
        self.changes[name, record.behind] += 1
        total = record.total
        self.on_change(
            RankChange(
                model,
                name,
                record.behind,
                total.rate if total.answers >= LEAST_ANSWERS else None,
                best.rate if best is not None else None,
            )
        )


def _take_one(counts: Counter[int], key: int) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _nobody(change: RankChange) -> None:
    """Nobody listens."""
