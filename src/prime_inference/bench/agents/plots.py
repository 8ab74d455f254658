"""Figures of a run, each saying by itself what was simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.results import Results
from prime_inference.bench.agents.summary import Setting, Summary

SIZE = (8.0, 4.8)  # inches; two to a page's width in a report
DPI = 110
KINDS = {"warm": "tab:blue", "subagent": "tab:green", "cold": "tab:red"}


class PlotsUnavailable(RuntimeError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "no plots and no report.html: install the extra, pip install 'prime-inference[bench]'"
        )


def draw(folder: Path, summary: Summary, results: Results) -> list[tuple[str, Path]]:
    """Write every figure that the run has data for; titles and PNG files.

    Raises PlotsUnavailable.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotsUnavailable from None
    drawn: list[tuple[str, Path]] = []
    for name, title, paint in FIGURES:
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.subplots()
        if not paint(axes, summary, results):
            continue
        axes.set_title(title)
        axes.grid(alpha=0.3)
        _say_what_is_not_real(figure, summary)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=DPI)
        drawn.append((title, path))
    return drawn


def _say_what_is_not_real(figure: Any, summary: Summary) -> None:
    notices = [f"SIMULATED: {notice}" for notice in summary.provenance.simulated]
    if not all(point.valid for point in summary.points):
        notices.append("NOT VALID: see the reasons in the report")
    if summary.state != "complete":
        notices.append(f"PARTIAL: the run is {summary.state}")
    if notices:
        figure.suptitle("\n".join(notices), color="crimson", fontsize=10, fontweight="bold",
                        parse_math=False)  # fmt: skip


def _frontier(axes: Any, summary: Summary, results: Results) -> bool:
    """A point a setting, medians over seeds with their range; nothing between or beyond."""
    settings = [s for s in summary.settings if _drawable(s)]
    for rate in sorted({s.cold_rate for s in settings}):
        line = [s for s in settings if s.cold_rate == rate]
        x, y = [s.warm_e2e_p90 for s in line], [s.output_tps_per_gpu for s in line]
        axes.errorbar(
            [b.median for b in x], [b.median for b in y],
            xerr=[[b.median - b.low for b in x], [b.high - b.median for b in x]],
            yerr=[[b.median - b.low for b in y], [b.high - b.median for b in y]],
            marker="o", capsize=3, label=f"cold {rate:g}/s",
        )  # fmt: skip
        for setting, bx, by in zip(line, x, y, strict=True):
            axes.annotate(f" {setting.sessions}", (bx.median, by.median))
    axes.set_xlabel("warm E2E normalized interactivity, P90 (tok/s/user)")
    axes.set_ylabel("output throughput, all requests (tok/s/GPU)")
    axes.legend()
    return bool(settings)


def _drawable(setting: Setting) -> bool:
    return setting.warm_e2e_p90.median > 0 and math.isfinite(setting.warm_e2e_p90.median)


def _interference(axes: Any, summary: Summary, results: Results) -> bool:
    """Warm P90 against the cold rate, a line for each number of sessions."""
    settings = [s for s in summary.settings if _drawable(s)]
    if len({s.cold_rate for s in settings}) < 2:
        return False
    for sessions in sorted({s.sessions for s in settings}):
        line = [s for s in settings if s.sessions == sessions]
        bands = [s.warm_e2e_p90 for s in line]
        axes.errorbar(
            [s.cold_rate for s in line], [b.median for b in bands],
            yerr=[[b.median - b.low for b in bands], [b.high - b.median for b in bands]],
            marker="o", capsize=3, label=f"{sessions} sessions",
        )  # fmt: skip
    axes.set_xlabel("cold arrivals (1/s)")
    axes.set_ylabel("warm E2E normalized interactivity, P90 (tok/s/user)")
    axes.set_ylim(bottom=0)
    axes.legend()
    return True


def _profiled(results: Results) -> list[Record]:
    """Successful records of the last finished point, the most loaded one of a sweep."""
    if not results.points:
        return []
    last = max(results.points, key=lambda run: (run.point.sessions, run.point.cold_rate))
    return [r for r in results.of_point(last.number) if r.phase == "profiling" and r.ok and r.osl]


def _timeline(axes: Any, summary: Summary, results: Results) -> bool:
    """Time to first token of every request, when it was sent."""
    records = [r for r in _profiled(results) if r.ttft is not None]
    for kind, colour in KINDS.items():
        own = [r for r in records if r.kind == kind]
        if own:
            axes.scatter([r.sent for r in own], [r.ttft for r in own], s=6, c=colour, label=kind)
    for run in results.points:
        for fault in run.faults:
            axes.axvline(fault.at, color="black", linestyle="--")
    axes.set_xlabel("sent (s since the point began)")
    axes.set_ylabel("time to first token (s)")
    axes.set_yscale("log")
    if records:
        axes.legend()
    return bool(records)


def _depth(axes: Any, summary: Summary, results: Results) -> bool:
    """Seconds per output token against the prompt's length."""
    records = _profiled(results)
    for kind, colour in KINDS.items():
        own = [r for r in records if r.kind == kind]
        if own:
            axes.scatter(
                [r.isl for r in own], [r.e2el / r.osl * 1000 for r in own], s=6, c=colour,
                label=kind,
            )  # fmt: skip
    axes.set_xlabel("prompt (tokens)")
    axes.set_ylabel("end-to-end time per output token (ms)")
    axes.set_yscale("log")
    if records:
        axes.legend()
    return bool(records)


Paint = Callable[[Any, Summary, Results], bool]
FIGURES: Sequence[tuple[str, str, Paint]] = (
    ("frontier", "Interactivity against throughput over concurrency", _frontier),
    ("interference", "What cold arrivals do to warm requests", _interference),
    ("timeline", "Time to first token over time, most loaded point", _timeline),
    ("depth", "Time per output token by context depth, most loaded point", _depth),
)
