"""A table, a summary and a figure of what was measured, and pairs of cases compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.dynamo_agents.cases import CASES, PAIRS, Case
from prime_inference.bench.agents.compare import Comparison, compare
from prime_inference.bench.agents.metrics import Hardware, Slo
from prime_inference.bench.agents.provenance import Provenance
from prime_inference.bench.agents.results import read_results
from prime_inference.bench.agents.summary import Band, Summary, summarise

GPUS = 4  # workers, each of which plays one
COLUMNS = (
    "case", "cold/s", "warm TTFT p50 s", "warm TTFT p90 s", "cold TTFT p90 s", "warm ITL p90 ms",
    "warm E2E p90 tok/s/user", "output tok/s/GPU", "ok / failed", "router's hit rate", "valid",
)  # fmt: skip
FILE = "measured.json"


class Measured(Struct, frozen=True):
    """A case at one rate of cold arrivals; its folder has the records."""

    case: Case
    cold: float
    hit_rate: float | None  # over the whole of it, warm-up included; of the KV-aware router


class Row(Struct, frozen=True, kw_only=True):
    """A case at one rate of cold arrivals; bands are over seeds."""

    case: str
    cold_rate: float
    seeds: int
    ok: int
    failed: int
    warm_ttft_p50: Band
    warm_ttft_p90: Band
    cold_ttft_p90: Band
    itl_p90: Band
    warm_e2e_p90: Band
    output_tps_per_gpu: Band
    theoretical_hit_rate: Band
    router_hit_rate: float | None
    valid: bool
    invalid_because: tuple[str, ...]


class Pair(Struct, frozen=True):
    """Two cases at one rate, paired by seed and session."""

    a: str
    b: str
    cold_rate: float
    metrics: list[Comparison]


class Document(Struct, frozen=True):
    """All of a run, without its records."""

    provenance: Provenance
    rows: list[Row]
    pairs: list[Pair]


def keep(folder: Path, measured: Measured) -> None:
    """Write it beside its records."""
    (folder / FILE).write_bytes(msgspec.json.encode(measured))


def write_report(out: Path) -> None:
    """Write summary.json, table.md and dynamo.png of all that lies in `out`; print the table."""
    files = {
        file.parent: msgspec.json.decode(file.read_bytes(), type=Measured)
        for file in out.glob(f"*/{FILE}")
    }
    order = [case.name for case in CASES]
    measured = dict(
        sorted(files.items(), key=lambda each: (order.index(each[1].case.name), each[1].cold))
    )
    summaries = {
        folder: summarise(read_results(folder), Slo(), Hardware(GPUS, None)) for folder in measured
    }
    rows = [_row(one, summaries[folder]) for folder, one in measured.items()]
    pairs = _pairs(measured)
    first = next(iter(summaries.values()))
    document = Document(first.provenance, rows, pairs)
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    (out / "summary.json").write_bytes(text)
    table = f"{_table(rows)}\n\n{_pair_table(pairs)}\n"
    (out / "table.md").write_text(table)
    print("\n".join(f"SIMULATED: {notice}" for notice in first.provenance.simulated))
    print(table)
    _draw(out / "dynamo.png", rows, first.provenance.simulated)


def _row(one: Measured, summary: Summary) -> Row:
    kinds = [point.classes for point in summary.points]
    warm = [found["warm"] for found in kinds if "warm" in found]
    cold = [found["cold"] for found in kinds if "cold" in found]
    every = [found["all"] for found in kinds if "all" in found]
    return Row(
        case=one.case.name,
        cold_rate=one.cold,
        seeds=len(summary.points),
        ok=sum(found.ok for found in every),
        failed=sum(found.failed for found in every),
        warm_ttft_p50=Band.of([found.ttft.p50 for found in warm]),
        warm_ttft_p90=Band.of([found.ttft.p90 for found in warm]),
        cold_ttft_p90=Band.of([found.ttft.p90 for found in cold]),
        itl_p90=Band.of([found.itl.p90 for found in warm]),
        warm_e2e_p90=Band.of([found.e2e_norm_intvty.p90 for found in warm]),
        output_tps_per_gpu=Band.of([f.throughput.per_gpu_output_tput_tps for f in every]),
        theoretical_hit_rate=Band.of([found.theoretical_hit_rate for found in warm]),
        router_hit_rate=one.hit_rate if one.case.router == "kv" else None,
        valid=all(point.valid for point in summary.points),
        invalid_because=tuple(r for point in summary.points for r in point.invalid_because),
    )


def _pairs(measured: Mapping[Path, Measured]) -> list[Pair]:
    folders = {(one.case.name, one.cold): folder for folder, one in measured.items()}
    found = []
    for a, b in PAIRS:
        for cold in sorted({one.cold for one in measured.values()}):
            if (a, cold) in folders and (b, cold) in folders:
                results = (read_results(folders[name, cold]) for name in (a, b))
                # rows say of themselves what is not valid
                found.append(Pair(a, b, cold, compare(*results, anyway=True)))
    return found


def _table(rows: Sequence[Row]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        hit = "-" if row.router_hit_rate is None else f"{row.router_hit_rate:.2f}"
        cells = (
            row.case, f"{row.cold_rate:g}", _band(row.warm_ttft_p50), _band(row.warm_ttft_p90),
            _band(row.cold_ttft_p90), _band(row.itl_p90, 1000, 0), _band(row.warm_e2e_p90, 1, 1),
            _band(row.output_tps_per_gpu, 1, 1), f"{row.ok} / {row.failed}", hit,
            "yes" if row.valid else "NO",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _band(band: Band, factor: float = 1, digits: int = 2) -> str:
    if math.isnan(band.median):
        return "-"
    low, middle, high = (
        f"{value * factor:.{digits}f}" for value in (band.low, band.median, band.high)
    )
    return f"{middle} ({low}–{high})"


def _pair_table(pairs: Sequence[Pair]) -> str:
    lines = [
        "| from, to | cold/s | metric | from | to | ratio | 95 % interval | pairs | differs |",
        "|---|---|---|---:|---:|---:|---|---:|---|",
    ]
    for pair in pairs:
        for one in pair.metrics:
            lines.append(
                f"| {pair.a}, {pair.b} | {pair.cold_rate:g} | {one.metric} ({one.unit}) "
                f"| {one.a:.3g} | {one.b:.3g} | {one.ratio:.2f} | {one.low:.2f} to {one.high:.2f} "
                f"| {one.pairs} | {'yes' if one.differs else 'no'} |"
            )
    return "\n".join(lines)


def _draw(path: Path, rows: Sequence[Row], simulated: Sequence[str]) -> None:
    from matplotlib.figure import Figure  # the extra `bench`

    figure: Any = Figure(figsize=(9.0, 9.0), layout="constrained")
    panels: Any = figure.subplots(3, 1, sharex=True)
    names = list(dict.fromkeys(row.case for row in rows))
    rates = sorted({row.cold_rate for row in rows})
    for axes, title, field in (
        (panels[0], "warm time to first token, P90 (s)", "warm_ttft_p90"),
        (panels[1], "warm inter-token latency, P90 (s)", "itl_p90"),
        (panels[2], "warm E2E interactivity, P90 (tok/s/user)", "warm_e2e_p90"),
    ):
        for number, rate in enumerate(rates):
            bands = {row.case: getattr(row, field) for row in rows if row.cold_rate == rate}
            at = [names.index(name) + 0.36 * (number - (len(rates) - 1) / 2) for name in bands]
            middles = [band.median for band in bands.values()]
            spread = [
                [band.median - band.low for band in bands.values()],
                [band.high - band.median for band in bands.values()],
            ]
            axes.bar(at, middles, 0.34, yerr=spread, capsize=3, label=f"cold {rate:g}/s")
        axes.set_ylabel(title)
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
    panels[2].set_xticks(range(len(names)), names)
    notices = [f"SIMULATED: {notice}" for notice in simulated]
    if not all(row.valid for row in rows):
        notices.append("NOT VALID in part: see summary.json")
    figure.suptitle("\n".join(notices), color="crimson", fontsize=10, fontweight="bold")
    figure.savefig(path, dpi=100)
