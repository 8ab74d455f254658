"""What the fleet and its guard have to tell, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_inference.gateway.live_fleet import LiveFleet


class FleetMetrics(Collector):
    """Costs nothing between two scrapes."""

    def __init__(self, live: LiveFleet) -> None:
        self._live = live

    def collect(self) -> Iterator[Metric]:
        reloads = CounterMetricFamily(
            "prime_fleet_reloads", "Changes of the fleet, by outcome.", labels=["outcome"]
        )
        reloads.add_metric(["taken"], self._live.reloads)
        reloads.add_metric(["refused"], self._live.failed_reloads)
        yield reloads
        yield GaugeMetricFamily(
            "prime_fleet_stale",
            "1 while the fleet that is served is not the one that is wanted.",
            value=float(self._live.error is not None),
        )
