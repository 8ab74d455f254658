"""What a run comes to: metrics of every point, and the seeds of a point taken together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from prime_inference.bench.agents.metrics import Hardware, PointMetrics, Slo, point_metrics
from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.plan import Plan
from prime_inference.bench.agents.provenance import Provenance
from prime_inference.bench.agents.results import Results, State


class Band(msgspec.Struct, frozen=True):
    """A value over seeds: median, lowest, highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Band:
        real = [value for value in values if not math.isnan(value)]
        if not real:
            return cls(math.nan, math.nan, math.nan)
        return cls(percentile(real, 50), min(real), max(real))


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Points that differ in their seed only. Interactivity is of warm requests, tokens a
    second a user; throughput of all, tokens a second a GPU."""

    sessions: int
    cold_rate: float
    seeds: int
    warm_e2e_p50: Band
    warm_e2e_p90: Band
    warm_ttft_p90: Band
    output_tps_per_gpu: Band
    goodput_share: Band
    valid: bool


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a report shows."""

    provenance: Provenance
    plan: Plan
    state: State
    slo: Slo
    hardware: Hardware
    points: tuple[PointMetrics, ...]
    settings: tuple[Setting, ...]


def summarise(results: Results, slo: Slo, hardware: Hardware) -> Summary:
    """Metrics of the finished points of a run."""
    options = results.plan.options
    points = tuple(
        point_metrics(
            run, results.of_point(run.number), slo=slo, hardware=hardware,
            lag_bound=options.lag_bound, failed_limit=options.failed_limit,
        )
        for run in results.points
    )  # fmt: skip
    return Summary(
        provenance=results.provenance,
        plan=results.plan,
        state=results.state,
        slo=slo,
        hardware=hardware,
        points=points,
        settings=_settings(points),
    )


def _settings(points: Sequence[PointMetrics]) -> tuple[Setting, ...]:
    groups: dict[tuple[int, float], list[PointMetrics]] = {}
    for found in points:
        key = (found.run.point.sessions, found.run.point.cold_rate)
        groups.setdefault(key, []).append(found)
    return tuple(_setting(key, groups[key]) for key in sorted(groups))


def _setting(key: tuple[int, float], points: Sequence[PointMetrics]) -> Setting:
    warm = [p.classes["warm"] for p in points if "warm" in p.classes]
    all_ = [p.classes["all"] for p in points if "all" in p.classes]
    return Setting(
        sessions=key[0],
        cold_rate=key[1],
        seeds=len(points),
        warm_e2e_p50=Band.of([c.e2e_norm_intvty.p50 for c in warm]),
        warm_e2e_p90=Band.of([c.e2e_norm_intvty.p90 for c in warm]),
        warm_ttft_p90=Band.of([c.ttft.p90 for c in warm]),
        output_tps_per_gpu=Band.of([c.throughput.per_gpu_output_tput_tps for c in all_]),
        goodput_share=Band.of([c.goodput_share for c in all_]),
        valid=all(p.valid for p in points),
    )
