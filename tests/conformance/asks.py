"""Asks with everything that a test does not care about filled in."""

from __future__ import annotations

import itertools
from dataclasses import replace

from prime_inference.domain.sharing import Sharing
from prime_inference.ports.coordination import (
    BlockAsk,
    BreakerState,
    Cause,
    Coordination,
    Limit,
    OpenTime,
    ProbeAsk,
    ProbeResult,
    RequestAsk,
    Trip,
    Verdict,
)

LONG_S = 4e9  # nothing ends in a test, and shares do not take turns (which depends on the clock)

LATER = 10**9  # a sequence number after all others

_sequence = itertools.count(1)


def block(
    holder: str,
    interactive: int,
    *,
    batch: int = 0,
    has: int = 0,
    in_flight: int = 0,
    safe: int = 0,
    keep: int = 0,
    has_batch: int = 0,
    capacity: int = 8,
    ttl_s: float = LONG_S,
    sequence: int | None = None,
    sharing: Sharing = Sharing.FAIR,
    pool: str = "d",
) -> BlockAsk:
    return BlockAsk(
        pool=pool,
        holder=holder,
        sequence=next(_sequence) if sequence is None else sequence,
        capacity=capacity,
        interactive=interactive,
        batch=batch,
        has=has,
        in_flight=in_flight,
        ttl_s=ttl_s,
        sharing=sharing,
        safe=safe,
        keep=keep,
        has_batch=has_batch,
    )


def reserved(
    holder: str,
    need: int,
    *,
    besides: int = 0,
    slots: int = 4,
    kept: int = 0,
    reservation: str = "r",
    **fields: int,
) -> BlockAsk:
    """An ask for slots of a reservation."""
    ask = block(holder, need, batch=besides, **fields)  # type: ignore[arg-type]
    return replace(ask, reservation=reservation, reserved=slots, kept=kept)


async def granted(store: Coordination, ask: BlockAsk) -> int:
    return (await store.lease_blocks([ask]))[0].granted


def trip(
    deployment: str = "d",
    *,
    epoch: int = 0,
    open_s: float = 30.0,
    cap_s: float = 60.0,
    forget_s: float = 60.0,
    cause: Cause = Cause.CONSECUTIVE,
) -> Trip:
    return Trip(deployment, epoch, cause, OpenTime(open_s, cap_s, forget_s))


def probe(owner: str, deployment: str = "d", *, ttl_s: float = 30.0, tickets: int = 2) -> ProbeAsk:
    return ProbeAsk(deployment, owner, ttl_s, tickets)


def result(
    owner: str,
    epoch: int,
    verdict: Verdict = Verdict.ANSWERED,
    deployment: str = "d",
    *,
    answers: int = 1,
    open_s: float = 30.0,
    cap_s: float = 60.0,
) -> ProbeResult:
    return ProbeResult(
        deployment, owner, epoch, verdict, answers, OpenTime(open_s, cap_s, forget_s=60.0)
    )


async def half_open(store: Coordination, owner: str = "a", *, tickets: int = 2) -> int:
    """Open the breaker of `d`, wait until it is due, take one ticket; the epoch."""
    await store.trip(trip(open_s=0.0))
    grant = await store.probe(probe(owner, tickets=tickets))
    assert grant.granted
    assert grant.record.state is BreakerState.HALF_OPEN
    return grant.record.epoch


def request(member: str, *limits: Limit, scope: str = "team", ttl_s: float = 30.0) -> RequestAsk:
    return RequestAsk(scope, limits or (Limit("concurrency", 2),), member, ttl_s)
