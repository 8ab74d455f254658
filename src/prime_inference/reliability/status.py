"""What `status` shows of a deployment."""

from __future__ import annotations

from dataclasses import dataclass

from prime_inference.ports.coordination import BreakerState, Cause
from prime_inference.reliability.deployment import DeploymentGuard


@dataclass(frozen=True, slots=True)
class DeploymentStatus:
    """A deployment as one replica sees it."""

    id: str
    model: str
    datacenter: str
    breaker: BreakerState
    cause: Cause | None  # why it is not closed
    healthy: bool
    draining: bool
    slots: int
    leased: int  # slots this replica may fill now
    in_flight: int
    batch_in_flight: int
    lease_lapsed: bool  # it goes by its safe capacity
    p50_first_token_s: float | None
    p99_first_token_s: float | None
    failure_rate: float  # of the last seconds
    answered: int  # attempts since the start
    failed: int
    refused: int


def status_of(member: DeploymentGuard, *, draining: bool, now: float) -> DeploymentStatus:
    """What is known of it now."""
    breaker = member.breaker
    closed = breaker.state is BreakerState.CLOSED
    return DeploymentStatus(
        id=member.id,
        model=member.model,
        datacenter=member.spec.datacenter,
        breaker=breaker.state,
        cause=None if closed else breaker.cause,
        healthy=member.healthy,
        draining=draining,
        slots=member.lease.capacity,
        leased=member.lease.limit(now),
        in_flight=member.all_in_flight,
        batch_in_flight=member.batch_in_flight,
        lease_lapsed=member.lease.lapsed(now),
        p50_first_token_s=member.first_token.quantile(0.5, now),
        p99_first_token_s=member.first_token.quantile(0.99, now),
        failure_rate=breaker.failure_rate(now),
        answered=member.answered,
        failed=member.failed,
        refused=member.refused,
    )
