"""Which deployments of a model are offered to requests: breakers with a floor."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.ports.coordination import BreakerState, Cause
from prime_inference.reliability.deployment import DeploymentGuard


def rate_may_eject(pool: Sequence[DeploymentGuard]) -> bool:
    """Whether statistics alone may take one more deployment away: at most half are ejected."""
    ejected = sum(1 for member in pool if not member.usable)
    return ejected + 1 <= len(pool) // 2


def eligible(pool: Sequence[DeploymentGuard], now: float) -> Sequence[DeploymentGuard]:
    """The members that requests are offered, never none.

    Applied at every choice: whatever the breakers were told, by a race of two replicas or a
    poisoned key, statistics do not eject more than half, and nothing ejects the last one.
    If all are ejected, all are offered, the one that is due for a probe first at the head.
    """
    closed = BreakerState.CLOSED
    usable = [member for member in pool if member.breaker.state is closed and member.healthy]
    if len(usable) == len(pool):
        return usable
    by_rate = [member for member in pool if _ejected_by_rate(member)]
    too_many = len(by_rate) - len(pool) // 2
    if too_many > 0:
        by_rate.sort(key=lambda member: member.breaker.failure_rate(now))
        usable.extend(by_rate[:too_many])
    if usable:
        return usable
    return sorted(pool, key=lambda member: (not member.healthy, member.breaker.due_at))


def _ejected_by_rate(member: DeploymentGuard) -> bool:
    breaker = member.breaker
    return (
        member.healthy and breaker.state is not BreakerState.CLOSED and breaker.cause is Cause.RATE
    )
