"""What Prometheus is told of reserved capacity, read when somebody scrapes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_inference.domain.generation import Generation
from prime_inference.domain.pools import RESERVED
from prime_inference.reliability.guard import Guard

PLACE = ("deployment", "reservation")


@dataclass(frozen=True, eq=False)
class ReservationMetrics(Collector):
    """Nothing where no slot is reserved."""

    guard: Guard
    _output: Counter[str] = field(default_factory=Counter)  # completion tokens, by reservation
    _over: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def record(self, generations: Sequence[Generation]) -> None:
        """Implements `ports.generations.GenerationSink`."""
        for one in generations:
            if one.pool.startswith(RESERVED):
                tokens = one.usage.completion_tokens
                self._output[one.pool.removeprefix(RESERVED)] += tokens
            elif one.over:
                went = "spilled" if one.deployment else "refused"
                self._over[one.model, one.over, went] += 1

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
        yield from (slots, in_flight, waiting, recalled, *self._used())

    def _used(self) -> Iterator[Metric]:
        output = CounterMetricFamily(
            "prime_reserved_output_tokens",
            "Completion tokens that slots of the reservation gave, of this replica.",
            labels=("reservation",),
        )
        over = CounterMetricFamily(
            "prime_over_reservation",
            "Requests beyond their team's reservations: slots, tokens_per_second, or late; spilled"
            " or refused.",
            labels=("model", "over", "outcome"),
        )
        for reservation, tokens in self._output.items():
            output.add_metric((reservation,), tokens)
        for labels, count in self._over.items():
            over.add_metric(labels, count)
        yield from (output, over)
