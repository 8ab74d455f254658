"""What Prometheus is told of reserved slots, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_inference.reliability.guard import Guard

PLACE = ("deployment", "reservation")


@dataclass(frozen=True, eq=False)
class ReservationMetrics(Collector):
    """Nothing where no slot is reserved."""

    guard: Guard

    def collect(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily(
            "prime_reserved_slots", "Slots of the deployment that are reserved.", labels=PLACE
        )
        in_flight = GaugeMetricFamily(
            "prime_reserved_in_flight", "Requests of this replica on reserved slots.", labels=PLACE
        )
        waiting = GaugeMetricFamily(
            "prime_reserved_waiting", "Requests that wait for a reserved slot.", labels=PLACE
        )
        recalled = CounterMetricFamily(
            "prime_slots_recalled",
            "Requests whose slot was lent and called back.",
            labels=("deployment",),
        )
        for view in self.guard.reserved.view():
            place = (view.deployment, view.reservation)
            slots.add_metric(place, view.slots)
            in_flight.add_metric(place, view.in_flight)
            waiting.add_metric(place, view.waiting)
        for deployment, count in self.guard.reserved.recalled.items():
            recalled.add_metric((deployment,), count)
        yield from (slots, in_flight, waiting, recalled)
