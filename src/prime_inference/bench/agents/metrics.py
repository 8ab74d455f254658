"""Metrics of records, with AgentX's names and definitions (docs/agent-benchmark.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from prime_inference.bench.agents.percentiles import mean, percentile
from prime_inference.bench.agents.point import PointRun
from prime_inference.bench.agents.records import OVERFLOW, Record

QUANTILES = (50, 75, 90, 95, 99)
CLASSES = ("all", "warm", "subagent", "cold")


class Slo(msgspec.Struct, frozen=True):
    """What a request must hold: seconds to the first token, output tokens/s end to end."""

    ttft: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Slo:
        """From `e2e=100` and `ttft=2`. Raises ValueError."""
        values: dict[str, float] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if name not in ("ttft", "e2e") or not equals or not float(value) > 0:
                raise ValueError(f"an SLO is e2e=TOKENS_PER_SECOND or ttft=SECONDS, not {text!r}")
            values[name] = float(value)
        return cls(**values)

    def held(self, record: Record) -> bool:
        """Whether a request counts for goodput: complete, its calls valid, its counts
        possible, and in time."""
        if not record.ok or record.truncated or record.invalid_calls or record.osl < 1:
            return False
        if record.usage_wrong:
            return False
        if self.ttft is not None and (record.ttft is None or record.ttft > self.ttft):
            return False
        return self.e2e is None or record.osl / record.e2el >= self.e2e


class Hardware(msgspec.Struct, frozen=True):
    """GPUs that served, and their price an hour; for a split deployment, both kinds added."""

    gpus: int = 1
    price: float | None = None


class Distribution(msgspec.Struct, frozen=True):
    """Of requests, in the metric's unit; NaN for none."""

    mean: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        p50, p75, p90, p95, p99 = (percentile(values, q) for q in QUANTILES)
        return cls(mean(values), p50, p75, p90, p95, p99, len(values))

    def inverse(self) -> Distribution:
        """1 / each: percentile first, then inverted, so that P90 is the slow tail."""
        inverted = (_inverse(v) for v in (self.p50, self.p75, self.p90, self.p95, self.p99))
        p50, p75, p90, p95, p99 = inverted
        return Distribution(_inverse(self.mean), p50, p75, p90, p95, p99, self.count)


class Throughput(msgspec.Struct, frozen=True):
    """Tokens a second over the span of the requests, and the same for each GPU."""

    output_tput_tps: float
    input_tput_tps: float
    total_tput_tps: float
    per_gpu_output_tput_tps: float
    per_gpu_total_tput_tps: float


class ClassMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One class of requests of one point. Seconds, tokens, tokens a second."""

    requests: int
    ok: int
    failed: int
    truncated: int
    outcomes: dict[str, int]
    ttft: Distribution
    ttft_intended: Distribution
    e2el: Distribution
    itl: Distribution
    e2e_norm_intvty: Distribution
    intvty: Distribution
    queue_wait: Distribution
    throughput: Throughput
    theoretical_hit_rate: float
    cached_share: float | None
    impossible_hits: int
    prompt_mismatches: int
    usage_doubtful: int
    calls: int
    invalid_calls: int
    goodput_per_second: float
    goodput_share: float


class PointMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """One point. `valid` is False with the reasons in `invalid_because`."""

    run: PointRun
    classes: dict[str, ClassMetrics]
    by_depth: dict[str, Distribution]
    sessions_completed: int
    session_seconds: Distribution
    recovery_seconds: dict[str, float | None]
    cost_per_million_output: float | None
    cost_per_session: float | None
    valid: bool
    invalid_because: tuple[str, ...] = ()


def point_metrics(
    run: PointRun, records: Sequence[Record], *, slo: Slo, hardware: Hardware, lag_bound: float,
    failed_limit: float,
) -> PointMetrics:  # fmt: skip
    """All of one point; records of the warm-up are left out here."""
    profiled = [r for r in records if r.phase == "profiling" and r.point == run.number]
    span = run.end - run.start
    classes = {
        name: class_metrics(
            [r for r in profiled if name in ("all", r.kind)], slo=slo, hardware=hardware, span=span
        )
        for name in CLASSES
    }
    completed = completed_plays(profiled)
    seconds = [session_seconds(play) for play in completed if play[0].turn == 0]
    price = None if hardware.price is None else hardware.price * hardware.gpus * span / 3600
    reasons = _invalid_because(run, profiled, classes["all"], lag_bound, failed_limit)
    return PointMetrics(
        run=run,
        classes={name: found for name, found in classes.items() if found.requests},
        by_depth=by_depth(profiled),
        sessions_completed=len(completed),
        session_seconds=Distribution.of(seconds),
        recovery_seconds={
            f"{fault.at - run.start:.1f}s {fault.told}": recovery(profiled, run, fault.at)
            for fault in run.faults
        },
        cost_per_million_output=_ratio(price, sum(r.osl for r in profiled if r.ok) / 1e6),
        cost_per_session=_ratio(price, len(completed)),
        valid=not reasons,
        invalid_because=reasons,
    )


def class_metrics(
    records: Sequence[Record], *, slo: Slo, hardware: Hardware, span: float
) -> ClassMetrics:
    """Metrics of requests of one class; `span` is the profiling phase in seconds."""
    ended = [r for r in records if r.ended]
    ok = [r for r in ended if r.ok and r.e2el > 0 and r.osl > 0]
    outcomes: dict[str, int] = {}
    for record in records:
        outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
    per_token = Distribution.of([r.e2el / r.osl for r in ok])
    itl = Distribution.of([itl for r in ok if (itl := r.itl) is not None and itl > 0])
    good = sum(slo.held(r) for r in ended)
    told = [r for r in ok if r.cached_tokens is not None]
    planned = [r for r in ok if r.hit_tokens is not None]
    return ClassMetrics(
        requests=len(records),
        ok=len(ok),
        failed=len(ended) - len(ok),
        truncated=sum(r.truncated for r in ok),
        outcomes=dict(sorted(outcomes.items())),
        ttft=Distribution.of([ttft for r in ok if (ttft := r.ttft) is not None]),
        ttft_intended=Distribution.of([r.first - r.intended for r in ok if r.first is not None]),
        e2el=Distribution.of([r.e2el for r in ok]),
        itl=itl,
        e2e_norm_intvty=per_token.inverse(),
        intvty=itl.inverse(),
        queue_wait=Distribution.of([r.queue_seconds for r in ok if r.queue_seconds is not None]),
        throughput=throughput(ok, hardware.gpus),
        theoretical_hit_rate=_share(sum(r.hit_tokens or 0 for r in planned), planned),
        cached_share=_share(sum(r.cached_tokens or 0 for r in told), told) if told else None,
        impossible_hits=sum(r.impossible_hit for r in records),
        prompt_mismatches=sum(r.prompt_mismatch for r in records),
        usage_doubtful=sum(r.usage_doubtful for r in records),
        calls=sum(r.calls for r in ok),
        invalid_calls=sum(r.invalid_calls for r in ok),
        goodput_per_second=good / span if span > 0 else 0.0,
        goodput_share=good / len(ended) if ended else math.nan,
    )


def throughput(ok: Sequence[Record], gpus: int) -> Throughput:
    """Σ tokens / (max end - min send)."""
    if not ok:
        return Throughput(0.0, 0.0, 0.0, 0.0, 0.0)
    span = max(r.end for r in ok) - min(r.sent for r in ok)
    output, input_ = sum(r.osl for r in ok) / span, sum(r.isl for r in ok) / span
    total = output + input_
    return Throughput(output, input_, total, output / gpus, total / gpus)


DEPTHS = (1_000, 4_000, 16_000, 64_000, 128_000, 256_000)
"""Tokens of context; four and two times apart, the middle ones around the corpus' median."""


def by_depth(records: Sequence[Record]) -> dict[str, Distribution]:
    """Seconds per output token of session turns by the length of their prompt."""
    buckets: dict[str, list[float]] = {}
    for record in sorted(records, key=lambda r: r.isl):
        if record.ok and record.osl and record.kind != "cold":
            buckets.setdefault(_depth(record.isl), []).append(record.e2el / record.osl)
    return {name: Distribution.of(values) for name, values in buckets.items()}


def _depth(tokens: int) -> str:
    low = 0
    for high in DEPTHS:
        if tokens < high:
            return f"{low}-{high}"
        low = high
    return f"{low}+"


def completed_plays(records: Sequence[Record]) -> list[list[Record]]:
    """The main session's turns of every tree whose last turn ended well."""
    plays: dict[int, list[Record]] = {}
    for record in records:
        if record.kind == "warm":
            plays.setdefault(record.play, []).append(record)
    ordered = [sorted(play, key=lambda r: r.turn) for play in plays.values()]
    return [play for play in ordered if play[-1].last_turn and play[-1].ok]


def session_seconds(play: Sequence[Record]) -> float:
    """From the first send to the last end, less the waits between turns as they were."""
    return play[-1].end - play[0].sent - sum(r.wait for r in play[1:])


RECOVERY_BIN = 5.0  # seconds: some ten requests at the rates of a small fleet
RECOVERED_SUCCESS = 0.99
RECOVERED_SPEED = 0.8  # of the median before the fault


def recovery(records: Sequence[Record], run: PointRun, at: float) -> float | None:
    """Seconds from a fault at `at` until success and speed are back for good; None: never.

    Requests count in the bin in which they were sent.
    """
    ended = [r for r in records if r.ended]
    before = _speed([r for r in ended if r.sent < at])
    last_send = max((r.sent for r in ended), default=at)
    recovered: float | None = None
    for n in range(math.ceil((last_send - at) / RECOVERY_BIN)):
        begin = at + n * RECOVERY_BIN
        inside = [r for r in ended if begin <= r.sent < begin + RECOVERY_BIN]
        if not inside:
            continue  # nobody asked: it says neither this nor that
        if _fine(inside, before):
            recovered = begin - at if recovered is None else recovered
        else:
            recovered = None
    return recovered


def _fine(inside: Sequence[Record], before: float) -> bool:
    success = sum(r.ok for r in inside) / len(inside)
    return success >= RECOVERED_SUCCESS and not _speed(inside) < RECOVERED_SPEED * before


def _speed(records: Sequence[Record]) -> float:
    return _inverse(percentile([r.e2el / r.osl for r in records if r.ok and r.osl], 50))


def _invalid_because(
    run: PointRun, records: Sequence[Record], all_: ClassMetrics, lag_bound: float,
    failed_limit: float,
) -> tuple[str, ...]:  # fmt: skip
    """AgentX's gates, and the generator's own lag."""
    overflows = sum(r.outcome == OVERFLOW for r in records)
    ended = max(1, all_.ok + all_.failed)
    checks: list[tuple[bool, Callable[[], str]]] = [
        (not all_.ok, lambda: "no request succeeded"),
        (run.late(lag_bound), lambda: (
            f"the generator was late: p99 {run.lag_p99 * 1000:.1f} ms of the loop,"
            f" {run.send_lag_p99 * 1000:.1f} ms of sends; the bound is {lag_bound * 1000:g} ms")),
        (all_.failed / ended > failed_limit, lambda: (
            f"{all_.failed} of {ended} requests failed; the limit is {failed_limit:.0%}")),
        (overflows / ended > OVERFLOW_LIMIT, lambda: f"{overflows} prompts were too long"),
        *_usage_checks(all_),
    ]  # fmt: skip
    return tuple(reason() for wrong, reason in checks if wrong)


OVERFLOW_LIMIT = 0.01  # AgentX: context_overflow_rate_exceeded
USAGE_LIMIT = 0.01  # of successes: a P99 then rests on counts that are possible


def _usage_checks(all_: ClassMetrics) -> list[tuple[bool, Callable[[], str]]]:
    """Every figure rests on the server's counts: too many impossible ones make a point void."""
    kinds = (
        (all_.usage_doubtful, "output tokens that do not fit what came"),
        (all_.prompt_mismatches, "prompt tokens other than what was sent"),
        (all_.impossible_hits, "more cached tokens than is possible"),
    )

    def reason(count: int, what: str) -> Callable[[], str]:
        return lambda: f"{count} of {all_.ok} answers tell {what}; the limit is {USAGE_LIMIT:.0%}"

    return [(count > USAGE_LIMIT * all_.ok, reason(count, what)) for count, what in kinds]


def _share(tokens: int, records: Sequence[Record]) -> float:
    total = sum(r.isl for r in records)
    return tokens / total if total else math.nan


def _inverse(value: float) -> float:
    return 1 / value if value else math.inf


def _ratio(price: float | None, units: float) -> float | None:
    return price / units if price is not None and units else None
