"""The report: one HTML file with its plots inside."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from prime_inference.bench.agents.metrics import ClassMetrics, PointMetrics
from prime_inference.bench.agents.plots import PlotsUnavailable, draw
from prime_inference.bench.agents.results import Results
from prime_inference.bench.agents.summary import Summary

__all__ = ["PlotsUnavailable", "write_report"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .2rem .7rem }
th { text-align: left; border-bottom: 1px solid } td { text-align: right }
td:first-child { text-align: left } img { max-width: 100% }
.notice { color: crimson; font-weight: bold } .scroll { overflow-x: auto }
"""

POINT_COLUMNS = (
    "class", "requests", "ok", "failed", "truncated", "TTFT P50 s", "TTFT P90 s",
    "TTFT from intended P90 s", "ITL P50 ms", "ITL P90 ms", "ITL P99 ms", "E2E P50 tok/s/user",
    "E2E P75 tok/s/user", "E2E P90 tok/s/user", "decode P90 tok/s/user", "output tok/s/GPU",
    "total tok/s/GPU", "theoretical hit", "cached", "impossible hits", "prompt mismatches",
    "usage doubtful", "goodput 1/s", "goodput share",
)  # fmt: skip


def write_report(folder: Path, summary: Summary, results: Results) -> Path:
    """Write `report.html` and the PNG files. Raises PlotsUnavailable, OSError."""
    figures = draw(folder, summary, results)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>Agent benchmark: {html.escape(summary.plan.model)}</title>",
        f"<style>{STYLE}</style>",
        f"<h1>Agent benchmark: {html.escape(summary.plan.model)}</h1>",
        *_notices(summary),
        *(_figure(title, path, summary) for title, path in figures),
        "<h2>Points</h2>",
        *(part for point in summary.points for part in _point(point)),
        "<h2>Provenance</h2>",
        _provenance(summary),
    ]
    path = folder / "report.html"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _notices(summary: Summary) -> Iterable[str]:
    notices = [f"SIMULATED: {notice}" for notice in summary.provenance.simulated]
    if summary.state != "complete":
        notices.append(f"PARTIAL: the run is {summary.state}")
    for point in summary.points:
        notices += [f"NOT VALID, point {point.run.number}: {r}" for r in point.invalid_because]
    return (f"<p class=notice>{html.escape(notice)}</p>" for notice in notices)


def _figure(title: str, path: Path, summary: Summary) -> str:
    """A figure with its notice in the caption too, for who copies the picture's text."""
    picture = base64.b64encode(path.read_bytes()).decode()
    notice = "; ".join(summary.provenance.simulated)
    caption = html.escape(title + (f" (simulated: {notice})" if notice else ""))
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{picture}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _point(point: PointMetrics) -> Iterable[str]:
    run = point.run
    yield (
        f"<h3>{run.point.sessions} sessions, cold {run.point.cold_rate:g}/s, seed"
        f" {run.point.seed}</h3><p>{run.end - run.start:.1f} s; generator lag p99"
        f" {run.lag_p99 * 1000:.2f} ms (loop), {run.send_lag_p99 * 1000:.2f} ms (sends); load"
        f" average {run.load[0]:.2f} before, {run.load[1]:.2f} after;"
        f" {point.sessions_completed} sessions completed.{_extras(point)}</p>"
    )
    rows = [_class_row(name, found) for name, found in point.classes.items()]
    yield f"<div class=scroll>{_table(POINT_COLUMNS, rows)}</div>"


def _extras(point: PointMetrics) -> str:
    text = ""
    if point.session_seconds.count:
        text += f" Session time less tool time: P50 {point.session_seconds.p50:.2f} s."
    for fault, seconds in point.recovery_seconds.items():
        after = "never" if seconds is None else f"after {seconds:.0f} s"
        text += f" Fault {html.escape(fault)}: recovered {after}."
    if point.cost_per_million_output is not None:
        text += f" {point.cost_per_million_output:.2f} per million output tokens."
    if point.cost_per_session is not None:
        text += f" {point.cost_per_session:.4f} per session."
    return text


def _class_row(name: str, c: ClassMetrics) -> list[str]:
    cached = "not told" if c.cached_share is None else f"{c.cached_share:.1%}"
    return [
        name, str(c.requests), str(c.ok), str(c.failed), str(c.truncated), f"{c.ttft.p50:.3f}",
        f"{c.ttft.p90:.3f}", f"{c.ttft_intended.p90:.3f}", f"{c.itl.p50 * 1000:.2f}",
        f"{c.itl.p90 * 1000:.2f}", f"{c.itl.p99 * 1000:.2f}", f"{c.e2e_norm_intvty.p50:.2f}",
        f"{c.e2e_norm_intvty.p75:.2f}", f"{c.e2e_norm_intvty.p90:.2f}", f"{c.intvty.p90:.2f}",
        f"{c.throughput.per_gpu_output_tput_tps:.1f}", f"{c.throughput.per_gpu_total_tput_tps:.1f}",
        f"{c.theoretical_hit_rate:.1%}", cached, str(c.impossible_hits),
        str(c.prompt_mismatches), str(c.usage_doubtful),
        f"{c.goodput_per_second:.2f}", f"{c.goodput_share:.1%}",
    ]  # fmt: skip


def _provenance(summary: Summary) -> str:
    import msgspec

    plan = msgspec.to_builtins(summary.plan)
    rows = {
        **msgspec.to_builtins(summary.provenance),
        "workload": f"{plan['workload']} (sha256 {plan['workload_sha256']})",
        "slo": msgspec.to_builtins(summary.slo),
        "hardware": msgspec.to_builtins(summary.hardware),
        **plan["options"],
    }
    return _table(("what", "value"), [[name, str(value)] for name, value in rows.items()])


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(title)}" for title in titles)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) for row in rows)
    return f"<table><tr>{head}{body}</table>"
