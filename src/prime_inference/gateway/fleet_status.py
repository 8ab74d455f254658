"""What an operator is shown of the fleet, as this gateway replica sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from prime_inference.domain.models import Deployment, Model
from prime_inference.gateway.cache_figures import CacheView
from prime_inference.gateway.live_fleet import LiveFleet
from prime_inference.gateway.reservation_status import ReservationView
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.ports.catalog import Catalog
from prime_inference.ports.coordination import BreakerState
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.status import DeploymentStatus
from prime_inference.routing.tool_calls import ToolCallRanking

STATES = ("serving", "ejected", "unhealthy", "draining", "drained")


class DeploymentView(Struct, frozen=True):
    """One deployment. Times are in seconds, rates from 0 to 1; None is what nobody knows yet."""

    id: str
    model: str
    datacenter: str
    base_url: str
    engine: str
    state: str  # one of STATES
    breaker: str
    cause: str | None  # why the breaker is not closed
    healthy: bool
    slots: int
    leased: int  # by this replica
    in_flight: int  # of this replica
    flex_in_flight: int  # of these
    lease_lapsed: bool
    p50_first_token_s: float | None
    p99_first_token_s: float | None
    error_rate: float  # of the breaker's window
    answered: int
    failed: int
    refused: int
    tool_call_answers: int  # of the last two hours, that finished with tool calls
    tool_call_error_rate: float | None  # of those, with a wrong call: the public definition
    tool_calls_behind: bool  # requests with tools are offered it last


class DatacenterView(Struct, frozen=True):
    """Sums over its deployments."""

    id: str
    deployments: int
    serving: int
    slots: int
    leased: int
    in_flight: int


class ModelView(Struct, frozen=True):
    id: str
    revision: str
    deployments: int
    serving: int
    waiting: int  # requests in line for a slot
    tool_call_answers: int  # over its deployments, as theirs
    tool_call_error_rate: float | None


class ChangeView(Struct, frozen=True):
    """What an operator has changed over the fleet file; `values` are those that differ."""

    deployment: str
    change: str  # added, moved, drained, resumed, removed
    values: Mapping[str, Any]


class FleetView(Struct, frozen=True):
    """`error` says why the fleet that is served is not the one that is wanted.

    `store_error` is what the coordination store says instead of an answer. `failing` are tasks
    beside the requests that end again and again, with the cause.
    """

    replica: str
    replicas: int
    degraded: bool
    error: str | None
    store_error: str | None
    changes: Sequence[ChangeView]
    datacenters: Sequence[DatacenterView]
    models: Sequence[ModelView]
    deployments: Sequence[DeploymentView]
    caches: Sequence[CacheView] = ()
    failing: Mapping[str, str] = {}
    reservations: Sequence[ReservationView] = ()


def fleet_view(
    live: LiveFleet,
    catalog: Catalog,
    upstreams: Upstreams,
    guard: Guard,
    ranking: ToolCallRanking,
    caches: Sequence[CacheView] = (),
    store_error: str | None = None,
    failing: Mapping[str, str] | None = None,
    reservations: Sequence[ReservationView] = (),
) -> FleetView:
    """Everything, at this moment."""
    known = {status.id: status for status in guard.status()}
    listed = [one for model in catalog.models() for one in catalog.deployments(model.id)]
    calls = {one.id: upstreams.answers_with_calls(one.id) for one in listed}
    deployments = [
        _deployment(one, known.get(one.id), calls[one.id], behind=ranking.is_behind(one.id))
        for one in listed
    ]
    names = live.fleet.datacenters if live.fleet is not None else ()
    places = dict.fromkeys([*names, *(one.datacenter for one in listed)])
    return FleetView(
        replica=guard.replica,
        replicas=guard.replicas,
        degraded=guard.degraded,
        error=live.error,
        store_error=store_error,
        changes=[ChangeView(one.deployment, one.change, one.values) for one in live.overrides],
        datacenters=[_datacenter(place, deployments) for place in places],
        models=[
            _model(
                model,
                [one for one in deployments if one.model == model.id],
                guard.waiting(model.id),
                calls,
            )
            for model in catalog.models()
        ],
        deployments=deployments,
        caches=caches,
        failing=failing or {},
        reservations=reservations,
    )


def _model(
    model: Model,
    deployments: Sequence[DeploymentView],
    waiting: int,
    calls: Mapping[str, tuple[int, int]],
) -> ModelView:
    answers = sum(calls[one.id][0] for one in deployments)
    return ModelView(
        model.id,
        model.revision,
        len(deployments),
        sum(one.state == "serving" for one in deployments),
        waiting,
        answers,
        _rate(answers, sum(calls[one.id][1] for one in deployments)),
    )


def _rate(answers: int, wrong: int) -> float | None:
    return wrong / answers if answers else None


def _datacenter(name: str, deployments: Sequence[DeploymentView]) -> DatacenterView:
    mine = [one for one in deployments if one.datacenter == name]
    return DatacenterView(
        name,
        len(mine),
        sum(one.state == "serving" for one in mine),
        sum(one.slots for one in mine),
        sum(one.leased for one in mine),
        sum(one.in_flight for one in mine),
    )


def _deployment(
    spec: Deployment, status: DeploymentStatus | None, calls: tuple[int, int], *, behind: bool
) -> DeploymentView:
    """`status` is None once the guard has forgotten it: it has drained."""
    return DeploymentView(
        id=spec.id,
        model=spec.model,
        datacenter=spec.datacenter,
        base_url=spec.base_url,
        engine=spec.engine,
        state=_state(status),
        breaker=(status.breaker if status else BreakerState.CLOSED).value,
        cause=status.cause.value if status and status.cause else None,
        healthy=status is None or status.healthy,
        slots=spec.slots,
        leased=status.leased if status else 0,
        in_flight=status.in_flight if status else 0,
        flex_in_flight=status.batch_in_flight if status else 0,
        lease_lapsed=status is not None and status.lease_lapsed,
        p50_first_token_s=status.p50_first_token_s if status else None,
        p99_first_token_s=status.p99_first_token_s if status else None,
        error_rate=status.failure_rate if status else 0.0,
        answered=status.answered if status else 0,
        failed=status.failed if status else 0,
        refused=status.refused if status else 0,
        tool_call_answers=calls[0],
        tool_call_error_rate=_rate(*calls),
        tool_calls_behind=behind,
    )


def _state(status: DeploymentStatus | None) -> str:
    if status is None:
        return "drained"
    if status.draining:
        return "draining"
    if status.breaker is not BreakerState.CLOSED:
        return "ejected"
    return "serving" if status.healthy else "unhealthy"
