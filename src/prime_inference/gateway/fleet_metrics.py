"""What the fleet and its guard have to tell, read when somebody scrapes.

Nothing here costs a request anything: the numbers are kept for deciding, and copied when asked
for. Names and labels are a contract with dashboards and alert rules (deploy/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prime_inference.gateway.canary import Canaries
from prime_inference.gateway.fleet_status import STATES, DeploymentView, FleetView
from prime_inference.gateway.live_fleet import LiveFleet
from prime_inference.gateway.readiness import HealthChecks
from prime_inference.ports.coordination import BreakerState, Cause
from prime_inference.reliability.background import Background
from prime_inference.reliability.decisions import Retry, Wait
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.runner import Runner
from prime_inference.reliability.slots import Reason
from prime_inference.routing.tool_calls import ToolCallRanking

PLACE = ("deployment", "datacenter", "model")
GAUGES = {
    "slots": "Requests that the deployment may work on, of all replicas together.",
    "leased": "Of these, slots that this replica may fill now.",
    "in_flight": "Requests of this replica that the deployment works on now.",
    "flex_in_flight": "Of these, flex requests.",
    "lease_lapsed": "1 while this replica goes by its safe capacity: its lease has ended.",
    "tool_calls_behind": "1 while requests with tools are offered it last: it gets calls wrong.",
}
QUANTILES = {"0.5": "p50_first_token_s", "0.99": "p99_first_token_s"}


@dataclass(frozen=True, eq=False)
class FleetMetrics(Collector):
    """Everything that decides where requests go."""

    live: LiveFleet
    view: Callable[[], FleetView]
    guard: Guard
    ranking: ToolCallRanking
    runner: Runner
    health: HealthChecks
    canaries: Canaries
    background: Background

    def collect(self) -> Iterator[Metric]:
        view = self.view()
        yield from _deployments(view.deployments)
        yield from self._replica(view)
        yield from self._decisions(view)
        yield from self._store_and_probes()

    def _replica(self, view: FleetView) -> Iterator[Metric]:
        yield _gauge(
            "prime_degraded",
            "1 while this replica goes by itself: the store is away, or a lease has lapsed.",
            {(): view.degraded},
        )
        yield _gauge("prime_replicas", "Replicas that the store knows of.", {(): view.replicas})
        yield _gauge(
            "prime_waiting_requests",
            "Requests in line for a slot.",
            {(model.id,): model.waiting for model in view.models},
            ("model",),
        )
        yield _counter(
            "prime_fleet_reloads",
            "Changes of the fleet: taken, or refused since they were wrong.",
            {("taken",): self.live.reloads, ("refused",): self.live.failed_reloads},
            ("outcome",),
        )
        yield _gauge(
            "prime_fleet_stale",
            "1 while the fleet that is served is not the one that is wanted.",
            {(): view.error is not None},
        )
        yield _gauge(
            "prime_fleet_refused",
            "1 for each deployment that is listed as ready and cannot be served.",
            dict.fromkeys(((name,) for name in view.refused), 1),
            ("deployment",),
        )
        yield _counter(
            "prime_background_failures",
            "Times that a task beside the requests ended by a defect and was started again.",
            {(task,): count for task, count in self.background.failures.items()},
            ("task",),
        )

    def _decisions(self, view: FleetView) -> Iterator[Metric]:
        decisions = self.guard.decisions
        models = [model.id for model in view.models]
        deployments = [one.id for one in view.deployments]
        yield _counter(
            "prime_breaker_changes",
            "States that breakers entered: closed, open, half_open; and what opened them.",
            _from_nothing(deployments, [(BreakerState.OPEN.value, cause.value) for cause in Cause])
            | {(name, state.value, cause.value): count
               for (name, state, cause), count in decisions.breakers.items()},
            ("deployment", "state", "cause"),
        )  # fmt: skip
        yield _counter(
            "prime_tool_call_rank_changes",
            "Times that a deployment was put behind the others for requests with tools, or back.",
            {(name, "behind" if behind else "back"): n
             for (name, behind), n in self.ranking.changes.items()},
            ("deployment", "rank"),
        )  # fmt: skip
        yield _counter(
            "prime_slot_refusals",
            "Times that no slot was given: full, not_worth_waiting, waited, drained.",
            _from_nothing(models, [(reason.value,) for reason in Reason])
            | {(model, reason.value): n for (model, reason), n in decisions.refusals.items()},
            ("model", "reason"),
        )
        yield _counter(
            "prime_waits",
            "Ends of waits for a slot: served, expired; or refused, since none would come in time.",
            _from_nothing(models, [(wait.value,) for wait in Wait])
            | {(model, wait.value): n for (model, wait), n in decisions.waits.items()},
            ("model", "outcome"),
        )
        yield _counter(
            "prime_retries",
            "Further attempts: paid by the budget, denied by it, or free (off an ejected one).",
            _from_nothing(models, [(retry.value,) for retry in Retry])
            | {(model, retry.value): n for (model, retry), n in decisions.retries.items()},
            ("model", "decision"),
        )
        yield _counter(
            "prime_hedges",
            "Second attempts beside a late one: allowed, or denied by the budget.",
            _from_nothing(models, [("allowed",), ("denied",)])
            | {(model, "allowed" if allowed else "denied"): n
               for (model, allowed), n in decisions.hedges.items()},
            ("model", "decision"),
        )  # fmt: skip
        yield _counter(
            "prime_moved_requests",
            "Requests that left a deployment which was found down, for another one.",
            _from_nothing(deployments, [()]) | {(name,): n for name, n in decisions.moves.items()},
            ("deployment",),
        )

    def _store_and_probes(self) -> Iterator[Metric]:
        yield _counter(
            "prime_coordination_calls",
            "Calls to the coordination store: answered, or failed.",
            {(call, "answered" if answered else "failed"): n
             for (call, answered), n in self.runner.calls.items()},
            ("call", "outcome"),
        )  # fmt: skip
        yield _counter(
            "prime_health_checks",
            "Looks at deployments, by what they found.",
            {(name, found.value): count for (name, found), count in self.health.looks.items()},
            ("deployment", "found"),
        )
        yield _counter(
            "prime_canaries",
            "One-token probes of ejected deployments: answered, failed, unreached, neutral.",
            {(name, outcome.name.lower()): n for (name, outcome), n in self.canaries.sent.items()},
            ("deployment", "outcome"),
        )


def _deployments(deployments: Sequence[DeploymentView]) -> Iterator[Metric]:
    places = {(one.id, one.datacenter, one.model): one for one in deployments}
    for name, text in GAUGES.items():
        values: Values = {place: float(getattr(one, name)) for place, one in places.items()}
        yield _gauge(f"prime_deployment_{name}", text, values, PLACE)
    yield _gauge(
        "prime_deployment_state",
        f"1 for the state it is in: {', '.join(STATES)}.",
        {(*place, state): one.state == state for place, one in places.items() for state in STATES},
        (*PLACE, "state"),
    )
    yield _gauge(
        "prime_deployment_first_token_seconds",
        "Time to the first token of streams, of the last minute.",
        {(*place, quantile): value
         for place, one in places.items()
         for quantile, key in QUANTILES.items()
         if (value := getattr(one, key)) is not None},
        (*PLACE, "quantile"),
    )  # fmt: skip
    yield _gauge(
        "prime_deployment_tool_call_error_rate",
        "Of answers of the last two hours that finished with tool calls: with a wrong one, 0 to 1.",
        {place: value
         for place, one in places.items()
         if (value := one.tool_call_error_rate) is not None},
        PLACE,
    )  # fmt: skip
    yield _counter(
        "prime_deployment_attempts",
        "Attempts on it: answered, failed; or refused for want of a slot.",
        {(*place, outcome): getattr(one, outcome)
         for place, one in places.items()
         for outcome in ("answered", "failed", "refused")},
        (*PLACE, "outcome"),
    )  # fmt: skip


Values = Mapping[tuple[str, ...], float]
"""Numbers by the values of the labels."""


def _from_nothing(
    names: Sequence[str], more: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], float]:
    """Counters at 0: a series that began with its first event would hide it from `rate`."""
    return {(name, *labels): 0.0 for name in names for labels in more}


def _gauge(name: str, text: str, values: Values, labels: Sequence[str] = ()) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for place, value in values.items():
        family.add_metric(place, value)
    return family


def _counter(name: str, text: str, values: Values, labels: Sequence[str]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for place, value in values.items():
        family.add_metric(place, value)
    return family
