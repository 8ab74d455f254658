"""Prometheus counters of answers with tool calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from prime_inference.domain.tool_verdict import ToolVerdict

PLACE = ("model", "deployment")

Labels = TypeVar("Labels", bound=tuple[str, ...])


class ToolCallCounts:
    """What verdicts add up to, by model and deployment."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str, str]] = Counter()
        self._missing: Counter[tuple[str, str]] = Counter()
        self._unjudged: Counter[tuple[str, str]] = Counter()
        self._cut: Counter[tuple[str, str, str]] = Counter()
        self._unwanted: Counter[tuple[str, str]] = Counter()

    def count(self, verdict: ToolVerdict) -> None:
        place = (verdict.model, verdict.deployment)
        if verdict.cut is not None:
            self._cut[(*place, verdict.cut)] += 1
        if verdict.unwanted:
            self._unwanted[place] += 1
        if verdict.only_cut:
            return
        self._answers[place] += 1
        self._missing[place] += verdict.missing
        for error in verdict.errors:
            self._errors[(*place, error)] += 1
        if not verdict.judged:
            self._unjudged[place] += 1

    def collect(self) -> Iterator[Metric]:
        yield _family(
            "prime_tool_call_answers",
            "Answers with tool calls, or without one that was required.",
            PLACE,
            self._answers,
        )
        yield _family(
            "prime_tool_call_errors",
            "Answers with a tool call that is wrong: InvalidJson, UnknownName, SchemaMismatch."
            " One with several kinds counts once in each.",
            (*PLACE, "error"),
            self._errors,
        )
        yield _family(
            "prime_tool_calls_missing",
            "Answers without a call where tool_choice required one.",
            PLACE,
            self._missing,
        )
        yield _family(
            "prime_tool_calls_cut",
            "Answers with a call that the length limit or a stop string of the caller's cut; the"
            " call is not judged.",
            (*PLACE, "by"),
            self._cut,
        )
        yield _family(
            "prime_tool_calls_unwanted",
            "Answers whose engine called a tool although tool_choice was none; no call was given.",
            PLACE,
            self._unwanted,
        )
        yield _family(
            "prime_tool_calls_unjudged",
            "Answers whose calls were too much work to validate; they count as valid.",
            PLACE,
            self._unjudged,
        )


def _family(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family
