"""What a campaign measured, and the numbers drawn from it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import msgspec

from prime_inference.bench.gateway.accounts import Accounts
from prime_inference.bench.gateway.load import Load
from prime_inference.bench.gateway.machine import Cores, Machine
from prime_inference.bench.gateway.streams import StreamLoad


class Settings(msgspec.Struct, frozen=True):
    """How long and how often; times in seconds."""

    rounds: int
    load_seconds: float
    stream_seconds: float
    stream_rounds: int
    connections: tuple[int, ...] = (1, 8, 64)
    pace_ms: float = 20.0
    latency_streams: int = 32  # for added latencies: what every peer but LiteLLM carries
    first_streams: int = 64  # the search for the most doubles from here
    most_streams: int = 1536  # beyond one core of generator and mock; 0: no search
    database: str = "sqlite"  # of the gateway with accounts


class CpuTime(msgspec.Struct, frozen=True):
    """Seconds that a subject had of its core, and that other processes had of it."""

    own: float
    others: float
    elapsed: float


class WholeAnswers(msgspec.Struct, frozen=True):
    """One measurement of whole answers; `order` counts through the campaign."""

    subject: str
    round: int
    order: int
    connections: int
    load: Load
    cpu: CpuTime

    @property
    def cpu_ms_per_1000(self) -> float:
        """Milliseconds of the subject's CPU time for a thousand requests."""
        return 1e6 * self.cpu.own / self.load.requests


class Streams(msgspec.Struct, frozen=True):
    """One try of so many streams at once; `carried`: no frame lost, none late."""

    subject: str
    round: int
    load: StreamLoad
    carried: bool
    cpu: CpuTime

    @property
    def cpu_ms_per_1000_events(self) -> float:
        """Milliseconds of the subject's CPU time for a thousand events."""
        return 1e6 * self.cpu.own / max(1, self.load.events)


class Footprint(msgspec.Struct):
    """Resident memory in MiB."""

    idle_mib: float
    after_load_mib: float | None = None
    after_streams_mib: float | None = None


class Results(msgspec.Struct):
    """Everything a campaign found out."""

    made_at: str
    machine: Machine
    cores: Cores
    settings: Settings
    ours: str  # the subject that all others are compared with
    generator: str
    whole_upstream: str
    versions: dict[str, str]
    left_out: dict[str, str]
    whole: list[WholeAnswers] = []
    latency: list[Streams] = []  # so many streams that all carry them
    most: dict[str, list[int]] = {}  # largest number of streams carried, by subject and round
    tries: list[Streams] = []  # of the search for it
    memory: dict[str, Footprint] = {}
    accounts: Accounts | None = None

    @property
    def subjects(self) -> list[str]:
        """Names of what was measured, in the order of first measurement."""
        names = [m.subject for m in self.whole] + [m.subject for m in self.latency]
        return list(dict.fromkeys([*names, *self.most]))


class Spread(msgspec.Struct, frozen=True):
    """Median of the rounds with the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None for no values."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found)) if found else None


def per_subject(
    results: Results, subject: str, connections: int, value: Callable[[WholeAnswers], float]
) -> Spread | None:
    """A number of whole answers at one concurrency, over the rounds."""
    return Spread.of(value(m) for m in _at(results, subject, connections))


def against_neighbours(
    results: Results,
    subject: str,
    other: str,
    connections: int,
    compare: Callable[[WholeAnswers, WholeAnswers], float],
) -> Spread | None:
    """`compare(subject, other)`, each measurement of `other` with its nearest of `subject`.

    Nearest in time, so that what else the machine does weighs on both alike.
    """
    mine = _at(results, subject, connections)
    theirs = _at(results, other, connections)
    pairs = [(min(mine, key=lambda m: abs(m.order - o.order)), o) for o in theirs] if mine else []
    return Spread.of(compare(m, o) for m, o in pairs)


def _at(results: Results, subject: str, connections: int) -> list[WholeAnswers]:
    """Measurements that saw an answer; one without has no latency and no cost."""
    found = (m for m in results.whole if (m.subject, m.connections) == (subject, connections))
    return [m for m in found if m.load.requests]


def speed_ratio(results: Results, subject: str, other: str, connections: int) -> Spread | None:
    """How many times as many requests a second `subject` answers as `other`."""
    return against_neighbours(
        results, subject, other, connections, lambda m, o: m.load.per_second / o.load.per_second
    )


def added_latency(results: Results, subject: str, connections: int = 1) -> Spread | None:
    """Milliseconds that `subject` adds to the median answer, against its nearest direct one."""
    direct = _at(results, "direct", connections)
    if not direct:
        return None
    return Spread.of(
        m.load.p50_ms - min(direct, key=lambda d: abs(d.order - m.order)).load.p50_ms
        for m in _at(results, subject, connections)
    )


def added_by_streams(
    results: Results, subject: str, value: Callable[[StreamLoad], float]
) -> Spread | None:
    """Milliseconds that `subject` adds to a latency of streams, round by round."""
    direct = {m.round: value(m.load) for m in results.latency if m.subject == "direct"}
    return Spread.of(
        value(m.load) - direct[m.round]
        for m in results.latency
        if m.subject == subject and m.round in direct
    )


def stream_cost(results: Results, subject: str) -> Spread | None:
    """CPU milliseconds for a thousand events, at the same number of streams for all."""
    return Spread.of(m.cpu_ms_per_1000_events for m in results.latency if m.subject == subject)


def disturbance(results: Results) -> Spread | None:
    """Share of the core under test that went to other processes, over all measurements."""
    streams = [*results.latency, *results.tries]
    times = [(m.subject, m.cpu) for m in results.whole] + [(m.subject, m.cpu) for m in streams]
    return Spread.of(cpu.others / cpu.elapsed for subject, cpu in times if subject != "direct")


def errors(results: Results, subject: str) -> int:
    """Whole answers that were not a 200; a subject with any is not to be compared."""
    return sum(m.load.errors for m in results.whole if m.subject == subject)
