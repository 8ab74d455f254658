"""Shared breakers, as the store keeps them.

`adapters/redis/lua/breaker_*.lua` is the same in Lua.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prime_inference.ports.coordination import (
    BEAT_S,
    FORGET_CLOSED_S,
    Beat,
    BreakerReading,
    BreakerRecord,
    BreakerSnapshot,
    BreakerState,
    Cause,
    OpenTime,
    ProbeAsk,
    ProbeGrant,
    ProbeResult,
    Push,
    Trip,
    Verdict,
)


@dataclass(slots=True)
class _Breaker:
    state: BreakerState = BreakerState.CLOSED
    epoch: int = 0
    open_until: float = 0.0
    closed_at: float = 0.0
    cause: Cause = Cause.CONSECUTIVE
    trips: int = 0
    answers: int = 0
    tickets: dict[str, float] = field(default_factory=dict)  # owner -> deadline


class BreakerTable:
    """Every breaker of the fleet. `now` is the store's clock; steps backwards are evened out."""

    def __init__(self, publish: Callable[[Push], None]) -> None:
        self._breakers: dict[str, _Breaker] = {}
        self._publish = publish
        self._latest = 0.0
        self._version = 0
        self._beat = Beat(-round(BEAT_S * 1e6))  # an old one

    def trip(self, trip: Trip, now: float) -> BreakerRecord:
        """Open a breaker that is closed in the trip's epoch, or that nobody knew of."""
        now = self._advance(now)
        breaker = self._breakers.get(trip.deployment)
        if breaker is None:
            self._forget(now)
            breaker = self._breakers[trip.deployment] = _Breaker()
        elif breaker.state is not BreakerState.CLOSED or breaker.epoch != trip.epoch:
            return self._record(trip.deployment, now)
        breaker.cause = trip.cause
        return self._open(trip.deployment, breaker, trip.open_time, now)

    def probe(self, ask: ProbeAsk, now: float) -> ProbeGrant:
        """A ticket, if the breaker is due for probes and not too many are out."""
        now = self._advance(now)
        breaker = self._breakers.get(ask.deployment)
        if breaker is None or breaker.state is BreakerState.CLOSED:
            return ProbeGrant(False, self._record(ask.deployment, now))
        if breaker.state is BreakerState.OPEN:
            if now < breaker.open_until:
                return ProbeGrant(False, self._record(ask.deployment, now))
            breaker.answers = 0
            breaker.tickets.clear()
            self._change(ask.deployment, breaker, BreakerState.HALF_OPEN, now)
        breaker.tickets = {o: end for o, end in breaker.tickets.items() if end > now}
        granted = ask.owner in breaker.tickets or len(breaker.tickets) < ask.tickets
        if granted:
            breaker.tickets.setdefault(ask.owner, now + ask.ttl_s)
        return ProbeGrant(granted, self._record(ask.deployment, now))

    def conclude(self, result: ProbeResult, now: float) -> BreakerRecord:
        """Listen to the owner of a live ticket of this epoch; ignore everybody else."""
        now = self._advance(now)
        breaker = self._breakers.get(result.deployment)
        if (
            breaker is None
            or breaker.state is not BreakerState.HALF_OPEN
            or breaker.epoch != result.epoch
            or breaker.tickets.pop(result.owner, now) <= now
        ):
            return self._record(result.deployment, now)
        if result.verdict is Verdict.FAILED:
            return self._open(result.deployment, breaker, result.open_time, now)
        if result.verdict is Verdict.ANSWERED:
            breaker.answers += 1
            if breaker.answers >= result.answers:
                breaker.closed_at = now
                self._change(result.deployment, breaker, BreakerState.CLOSED, now)
        return self._record(result.deployment, now)

    def read(self, known_version: int, now: float) -> BreakerReading:
        """What has changed; a beat with it, if the last one is old."""
        now = self._advance(now)
        if not self._beat.number <= now * 1e6 < self._beat.number + BEAT_S * 1e6:
            self._beat = Beat(round(now * 1e6))
            self._publish(self._beat)
        if known_version == self._version:
            return BreakerReading(self._beat, None)
        records = tuple(self._record(name, now) for name in self._breakers)
        return BreakerReading(self._beat, BreakerSnapshot(self._version, records))

    def _open(
        self, deployment: str, breaker: _Breaker, open_time: OpenTime, now: float
    ) -> BreakerRecord:
        if breaker.state is BreakerState.CLOSED and now - breaker.closed_at > open_time.forget_s:
            breaker.trips = 0
        doubled = open_time.base_s * 2 ** min(breaker.trips, 20)
        breaker.open_until = now + min(doubled, open_time.cap_s)
        breaker.trips += 1
        breaker.tickets.clear()
        return self._change(deployment, breaker, BreakerState.OPEN, now)

    def _change(
        self, deployment: str, breaker: _Breaker, state: BreakerState, now: float
    ) -> BreakerRecord:
        # microseconds of the store's clock: a store that was emptied goes on with higher epochs
        self._version = max(self._version + 1, int(now * 1e6))
        breaker.epoch = self._version
        breaker.state = state
        record = self._record(deployment, now)
        self._publish(record)
        return record

    def _forget(self, now: float) -> None:
        """Drop what has been healthy for long: deployments come and go, the table must not grow."""
        self._breakers = {
            name: breaker
            for name, breaker in self._breakers.items()
            if breaker.state is not BreakerState.CLOSED or now - breaker.closed_at < FORGET_CLOSED_S
        }

    def _record(self, deployment: str, now: float) -> BreakerRecord:
        breaker = self._breakers.get(deployment)
        if breaker is None:
            return BreakerRecord(deployment, BreakerState.CLOSED, epoch=0)
        remaining = breaker.open_until - now if breaker.state is BreakerState.OPEN else 0.0
        return BreakerRecord(
            deployment,
            breaker.state,
            breaker.epoch,
            max(0.0, remaining),
            breaker.cause,
            breaker.trips,
        )

    def _advance(self, now: float) -> float:
        step_back = self._latest - now
        if step_back > 0:
            for breaker in self._breakers.values():
                breaker.open_until -= step_back
                breaker.closed_at -= step_back
                breaker.tickets = {o: end - step_back for o, end in breaker.tickets.items()}
        self._latest = now
        return now
