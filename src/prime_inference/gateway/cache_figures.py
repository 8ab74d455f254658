"""What an operator is shown of the KV caches: as answers tell, and as the fleet's workers tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_inference.domain.caches import CacheReport
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.ports.catalog import Catalog

PLACE = ("deployment", "datacenter", "model")


class Reports(Protocol):
    """What the workers of a fleet tell."""

    async def refresh(self) -> None:
        """See that `latest` is new; workers are asked only when somebody looks."""
        ...

    def latest(self) -> Mapping[str, CacheReport]:
        """The newest report of each deployment whose workers are asked; others are missing."""
        ...


class NoReports:
    """Of a fleet whose workers nobody asks."""

    async def refresh(self) -> None:
        pass

    def latest(self) -> Mapping[str, CacheReport]:
        return {}


class CacheView(Struct, frozen=True):
    """One deployment. Rates from 0 to 1, times in seconds; None is what nobody tells.

    `cached` is what engines say in their answers: cached over prompt tokens, of this gateway's
    requests of the last 30 minutes. The rest is since the workers started, of all requests.
    """

    id: str
    datacenter: str
    cached: float | None
    router_hits: float | None
    host_hits: float | None
    queue_s: float | None
    transfer_s: float | None


@dataclass(frozen=True, eq=False)
class CacheFigures(Collector):
    """Read when somebody looks or scrapes, after `reports` was refreshed."""

    catalog: Catalog
    upstreams: Upstreams
    reports: Reports
    now: Callable[[], float]

    def views(self) -> Sequence[CacheView]:
        reports = self.reports.latest()
        views = []
        for model in self.catalog.models():
            for upstream in self.upstreams.serving(model.id):
                one = upstream.deployment
                report = reports.get(one.id, CacheReport())
                views.append(
                    CacheView(
                        one.id,
                        one.datacenter,
                        upstream.statistics.cached_share(self.now()),
                        report.hit_rate,
                        report.host_hit_rate,
                        report.queue_seconds,
                        report.transfer_seconds,
                    )
                )
        return views

    def collect(self) -> Iterator[Metric]:
        prompt = CounterMetricFamily(
            "prime_deployment_prompt_tokens", "Prompt tokens of whole answers.", labels=PLACE
        )
        cached = CounterMetricFamily(
            "prime_deployment_cached_tokens",
            "Of these, tokens that the engine found in its cache.",
            labels=PLACE,
        )
        places = {}
        for model in self.catalog.models():
            for upstream in self.upstreams.serving(model.id):
                one = upstream.deployment
                places[one.id] = one.datacenter
                labels = (one.id, one.datacenter, one.model)
                prompt.add_metric(labels, upstream.statistics.prompt_tokens)
                cached.add_metric(labels, upstream.statistics.cached_tokens)
        yield prompt
        yield cached
        reports = self.reports.latest()
        yield from report_families(
            (name, place, reports[name]) for name, place in places.items() if name in reports
        )


def report_families(reports: Iterable[tuple[str, str, CacheReport]]) -> Iterator[Metric]:
    """Prometheus' form of reports with their deployment and datacenter."""
    described = {
        "prompt_tokens": "Prompt tokens that the router has seen.",
        "cached_tokens": "Prompt tokens found in the cache of the chosen worker.",
        "host_queries": "Tokens looked for in the second cache tier.",
        "host_hits": "Tokens found in the second cache tier.",
        "queue_seconds": "Mean wait of a request in a worker's queue.",
        "transfer_seconds": "Mean time of a KV transfer.",
    }
    made = {
        name: GaugeMetricFamily(f"prime_fleet_{name}", text, labels=["deployment", "datacenter"])
        for name, text in described.items()
    }
    for deployment, datacenter, report in reports:
        for name, family in made.items():
            value = getattr(report, name)
            if value is not None:
                family.add_metric([deployment, datacenter], value)
    yield from made.values()
