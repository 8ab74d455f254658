"""Prometheus metrics of the gateway; names and labels are a contract with dashboards.

A request adds to plain numbers, one cell for each combination of labels; the client
library's families are made from them when somebody scrapes. The library's own counters
take a lock for every increment, which was a tenth of the gateway's work per request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_inference.domain.errors import ApiError
from prime_inference.domain.generation import Generation
from prime_inference.domain.pools import FLEX
from prime_inference.domain.tool_verdict import ToolVerdict
from prime_inference.gateway.toolcalls.counts import ToolCallCounts

FIRST_TOKEN_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0, 3600.0)


class _Histogram:
    """Counts of observations up to each bound, in seconds."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by bound, and the sum."""
        total = 0
        rows = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            rows.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return rows, self._sum


@dataclass(slots=True)
class _ModelCell:
    """What is added up for one model."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    continuations: int = 0
    first_token: _Histogram = field(default_factory=lambda: _Histogram(FIRST_TOKEN_BUCKETS))
    duration: _Histogram = field(default_factory=lambda: _Histogram(DURATION_BUCKETS))


class _Generations(Collector):
    """Makes the library's families from the cells."""

    def __init__(self) -> None:
        self.outcomes: dict[tuple[str, str, str, str, str, str], int] = {}
        self.models: dict[str, _ModelCell] = {}
        self.unmeasured: dict[tuple[str, str], int] = {}
        self.tool_calls = ToolCallCounts()

    def count(self, generation: Generation) -> None:
        """Add one generation."""
        model, usage = generation.model, generation.usage
        labels = (
            generation.route, model, generation.deployment, generation.outcome, generation.error,
            FLEX if generation.pool == FLEX else "default",
        )  # fmt: skip
        self.outcomes[labels] = self.outcomes.get(labels, 0) + 1
        if not model:
            return
        cell = self.models.get(model)
        if cell is None:
            cell = self.models[model] = _ModelCell()
        cell.prompt += usage.prompt_tokens
        cell.cached += usage.cached_tokens
        cell.completion += usage.completion_tokens
        cell.reasoning += usage.reasoning_tokens
        cell.continuations += generation.continuations
        cell.duration.observe(generation.duration_seconds)
        if generation.first_token_seconds > 0:
            cell.first_token.observe(generation.first_token_seconds)
        if generation.outcome == "complete" and usage.source != "upstream":
            place = (model, generation.deployment)
            self.unmeasured[place] = self.unmeasured.get(place, 0) + 1

    def collect(self) -> Iterator[Metric]:
        yield self._outcomes()
        yield self._tokens()
        yield self._unmeasured()
        yield self._continuations()
        yield from self.tool_calls.collect()
        first_token = HistogramMetricFamily(
            "prime_first_token_seconds",
            "From accepting a streamed request to the first content sent.",
            labels=["model"],
        )
        duration = HistogramMetricFamily(
            "prime_generation_seconds",
            "From accepting a request to the end of its answer.",
            labels=["model"],
        )
        for model, cell in self.models.items():
            first_token.add_metric([model], *cell.first_token.buckets())
            duration.add_metric([model], *cell.duration.buckets())
        yield first_token
        yield duration

    def _outcomes(self) -> Metric:
        family = CounterMetricFamily(
            "prime_generations",
            "Generations by outcome: complete, cancelled, shutdown, failed, refused.",
            labels=["route", "model", "deployment", "outcome", "code", "tier"],
        )
        for labels, count in self.outcomes.items():
            family.add_metric(labels, count)
        return family

    def _tokens(self) -> Metric:
        family = CounterMetricFamily(
            "prime_tokens",
            "Tokens by kind: prompt, cached (part of prompt), completion, reasoning (part of it).",
            labels=["model", "kind"],
        )
        for model, cell in self.models.items():
            for kind in ("prompt", "cached", "completion", "reasoning"):
                family.add_metric([model, kind], getattr(cell, kind))
        return family

    def _continuations(self) -> Metric:
        family = CounterMetricFamily(
            "prime_continuations",
            "Times that another deployment went on with an answer that had begun.",
            labels=["model"],
        )
        for model, cell in self.models.items():
            family.add_metric([model], cell.continuations)
        return family

    def _unmeasured(self) -> Metric:
        family = CounterMetricFamily(
            "prime_usage_unmeasured",
            "Complete generations for which the engine gave no token counts.",
            labels=["model", "deployment"],
        )
        for labels, count in self.unmeasured.items():
            family.add_metric(labels, count)
        return family


class _ErrorAnswers(Collector):
    """Counts what the error tree can say: both labels come from its classes."""

    def __init__(self) -> None:
        self.answers: dict[tuple[int, str], int] = {}

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "prime_error_answers",
            "Answers of the public port with an error status, from requests that never became"
            " a generation too.",
            labels=["status", "code"],
        )
        for (status, code), count in self.answers.items():
            family.add_metric([str(status), code], count)
        yield family


class Metrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._generations = _Generations()
        self._error_answers = _ErrorAnswers()
        self._registry.register(self._generations)
        self._registry.register(self._error_answers)
        ProcessCollector(registry=self._registry)
        self.in_flight = Gauge(
            "prime_requests_in_flight", "Generations being served now.", registry=self._registry
        )
        self.loop_lag = Gauge(
            "prime_event_loop_lag_seconds",
            "How late the event loop ran its last periodic call.",
            registry=self._registry,
        )

    def register(self, collector: Collector) -> None:
        """Render what `collector` has to tell, too."""
        self._registry.register(collector)

    def watch(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Show a number that lives elsewhere, as it is when it is asked for."""
        Gauge(name, help_text, registry=self._registry).set_function(value)

    def record(self, generations: Sequence[Generation]) -> None:
        """Count finished generations. Implements `ports.generations.GenerationSink`."""
        for generation in generations:
            self._generations.count(generation)

    def error_answer(self, error: ApiError) -> None:
        """Count an answer with an error status."""
        answers = self._error_answers.answers
        labels = (error.status, error.code)
        answers[labels] = answers.get(labels, 0) + 1

    def judged(self, verdict: ToolVerdict) -> None:
        """Implements `ports.tool_verdicts.ToolVerdictSink`."""
        self._generations.tool_calls.count(verdict)

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._registry)
