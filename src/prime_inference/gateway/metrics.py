"""Prometheus metrics of the gateway; names and labels are a contract with dashboards."""

from __future__ import annotations

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from prime_inference.domain.generation import Generation

FIRST_TOKEN_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
DURATION_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """All metrics of one gateway process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._generations = Counter(
            "prime_generations_total",
            "Generations by outcome: complete, cancelled, failed, refused.",
            ["route", "model", "deployment", "outcome", "code"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "prime_tokens_total",
            "Tokens by kind: prompt, cached (part of prompt), completion, reasoning (part of it).",
            ["model", "kind"],
            registry=self.registry,
        )
        self._unmeasured = Counter(
            "prime_usage_unmeasured_total",
            "Complete generations for which the engine gave no token counts.",
            ["model", "deployment"],
            registry=self.registry,
        )
        self._first_token = Histogram(
            "prime_first_token_seconds",
            "From accepting a streamed request to the first content sent.",
            ["model"],
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )
        self._duration = Histogram(
            "prime_generation_seconds",
            "From accepting a request to the end of its answer.",
            ["model"],
            buckets=DURATION_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "prime_requests_in_flight", "Generations being served now.", registry=self.registry
        )
        self.loop_lag = Gauge(
            "prime_event_loop_lag_seconds",
            "How late the event loop ran its last periodic call.",
            registry=self.registry,
        )
        # `labels` costs more than the increment: each combination is looked up once
        self._generation_of = cache(self._generations.labels)
        self._tokens_of = cache(self._tokens.labels)
        self._first_token_of = cache(self._first_token.labels)
        self._duration_of = cache(self._duration.labels)

    def record(self, generation: Generation) -> None:
        """Count one finished generation. Implements `ports.generations.GenerationSink`."""
        model, usage = generation.model, generation.usage
        self._generation_of(
            generation.route, model, generation.deployment, generation.outcome, generation.error
        ).inc()
        if not model:
            return
        self._duration_of(model).observe(generation.duration_seconds)
        if generation.first_token_seconds > 0:
            self._first_token_of(model).observe(generation.first_token_seconds)
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("completion", usage.completion_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self._tokens_of(model, kind).inc(tokens)
        if generation.outcome == "complete" and usage.source != "upstream":
            self._unmeasured.labels(model, generation.deployment).inc()

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.registry)
