"""The numbers of this package, each with its reason (docs/reliability.md, "Numbers")."""

from __future__ import annotations

from dataclasses import dataclass, field

from prime_inference.domain.sharing import Sharing
from prime_inference.ports.coordination import OpenTime


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    window_s: int = 10  # shorter ones are blind at low rates
    consecutive_failures: int = 5  # Envoy's consecutive_5xx
    failure_rate: float = 0.5  # resilience4j
    least_calls: int = 20  # below, a rate is an anecdote
    open_s: float = 5.0  # an engine's restart takes longer, a hiccup does not
    open_cap_s: float = 15.0  # back within 20 s of recovery (S15), with two probes to close
    open_jitter: float = 0.1  # so that breakers that opened together are not probed together
    forget_s: float = 60.0  # closed for so long, a breaker starts at open_s again
    tickets: int = 2  # one may be lost with its owner without holding up the other
    answers_to_close: int = 2  # one may be luck
    ticket_s: float = 15.0  # longer than a probe's own first-token clock
    poll_s: float = 0.15  # with a call of 50 ms: every replica reacts within 200 ms
    heard_poll_s: float = 2.0  # push is heard: how long a subscription that dies goes unnoticed
    idle_poll_s: float = 60.0  # and nobody asks for anything: read again with the next request

    def __post_init__(self) -> None:
        _require(self.window_s >= 1, "breaker.window_s is at least 1")
        _require(self.consecutive_failures >= 1, "breaker.consecutive_failures is at least 1")
        _require(0 < self.failure_rate <= 1, "breaker.failure_rate is in (0, 1]")
        _require(self.least_calls >= 1, "breaker.least_calls is at least 1")
        _require(0 < self.open_s <= self.open_cap_s, "breaker.open_s is in (0, open_cap_s]")
        _require(self.open_cap_s <= 3600, "breaker.open_cap_s is at most 3600")
        _require(0 <= self.open_jitter < 1, "breaker.open_jitter is in [0, 1)")
        _require(self.tickets >= 1, "breaker.tickets is at least 1")
        _require(self.answers_to_close >= 1, "breaker.answers_to_close is at least 1")
        _require(self.ticket_s > 0 and self.poll_s > 0, "breaker.ticket_s and poll_s are above 0")
        _require(
            self.poll_s <= self.heard_poll_s <= self.idle_poll_s,
            "breaker.poll_s, heard_poll_s and idle_poll_s do not fall",
        )

    def open_time(self, jitter: float) -> OpenTime:
        """`jitter` in [-1, 1] spreads the base time."""
        return OpenTime(
            self.open_s * (1 + jitter * self.open_jitter), self.open_cap_s, self.forget_s
        )


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    ttl_s: float = 10.0  # until the capacity of a dead replica returns
    early_end: float = 0.02  # difference of clock speeds that is survived; quartz: 0.0001
    renew_at: float = 0.85  # of ttl_s; of the asks from then on, 0.3 s apart, two may be lost
    ask_gap_s: float = 0.1  # a burst needs more slots now
    contended_gap_s: float = 1.0  # others hold them: asking more often brings nothing
    headroom: float = 0.25  # of the peak, so that growing traffic meets leased slots
    reserve: float = 0.125  # of a replica's part: all replicas lease no more than that for nothing
    keep: float = 0.5  # of a replica's part, while the store is away: the rest is for who is busy
    assumed_replicas: int = 3  # before the store has told; one per zone
    sharing: Sharing = Sharing.FAIR
    longest_wait_s: float = 1.0  # the least a Retry-After can say

    def __post_init__(self) -> None:
        _require(self.ttl_s > 0, "lease.ttl_s is above 0")
        _require(0 <= self.early_end < 0.5, "lease.early_end is in [0, 0.5)")
        _require(0 < self.ask_gap_s <= self.contended_gap_s, "lease.ask_gap_s is in (0, contended]")
        _require(
            0 < self.renew_at <= 1 - 2 * self.early_end,
            "lease.renew_at is well before the early end",
        )
        _require(self.headroom >= 0, "lease.headroom is at least 0")
        _require(0 <= self.reserve <= 1, "lease.reserve is in [0, 1]")
        _require(0 <= self.keep <= 1, "lease.keep is in [0, 1]")
        _require(self.assumed_replicas >= 1, "lease.assumed_replicas is at least 1")
        _require(self.longest_wait_s >= 0, "lease.longest_wait_s is at least 0")


@dataclass(frozen=True, slots=True)
class RetrySettings:
    window_s: int = 10  # Finagle's ttl
    ratio: float = 0.2  # Envoy's and Finagle's 20 %
    floor_per_s: float = 2.0  # a datacenter that dies cuts four answers before its breaker opens
    hedge_least_samples: int = 100  # fewer have no p99
    hedge_least_s: float = 0.05  # a fast engine's p99 is noise of the network

    def __post_init__(self) -> None:
        _require(self.window_s >= 1, "retry.window_s is at least 1")
        _require(0 <= self.ratio <= 1, "retry.ratio is in [0, 1]")
        _require(self.floor_per_s >= 0, "retry.floor_per_s is at least 0")
        _require(self.hedge_least_samples >= 1, "retry.hedge_least_samples is at least 1")


@dataclass(frozen=True, slots=True)
class Settings:
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
