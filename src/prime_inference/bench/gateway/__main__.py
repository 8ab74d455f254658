"""python -m prime_inference.bench.gateway: see `make bench-gateway`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from prime_inference.bench.gateway import campaign, plot, report, soak
from prime_inference.bench.gateway.results import Settings
from prime_inference.bench.gateway.subjects import DIRECT, OURS, PEERS

FULL = Settings(rounds=5, load_seconds=6, stream_seconds=4, stream_rounds=3)
QUICK = Settings(
    rounds=1, load_seconds=2, stream_seconds=1, stream_rounds=1,
    connections=(1, 64), first_streams=256, most_streams=512,
)  # fmt: skip


def main(
    quick: Annotated[bool, typer.Option(help="One short round: under three minutes.")] = False,
    only: Annotated[
        str, typer.Option(help="Peers to measure, by commas; 'none': ours alone.")
    ] = "",
    rounds: Annotated[int | None, typer.Option(help="Rounds of whole answers.", min=1)] = None,
    soak_minutes: Annotated[
        float | None, typer.Option("--soak", help="Instead: so many minutes of moderate load.")
    ] = None,
    database: Annotated[
        str,
        typer.Option(help="For a gateway with accounts: sqlite, or postgresql://... (empty)."),
    ] = "sqlite",
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure the gateway beside its peers, or soak it."""
    out.mkdir(parents=True, exist_ok=True)
    if soak_minutes is not None:
        _soak(soak_minutes, out)
        return
    names = [subject.name for subject in PEERS]
    wanted = names if not only else [] if only == "none" else only.split(",")
    if unknown := [name for name in wanted if name not in names]:
        raise typer.BadParameter(f"no peer {unknown[0]!r}; there are {', '.join(names)}")
    peers = [subject for subject in PEERS if subject.name in wanted]
    settings = QUICK if quick else FULL
    settings = msgspec.structs.replace(settings, database=database)
    if rounds is not None:
        settings = msgspec.structs.replace(settings, rounds=rounds)
    results = campaign.run([DIRECT, OURS, *peers], settings, _say)
    (out / "gateway.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    (out / "gateway.md").write_text(report.markdown(results))
    plot.draw(results, out / "gateway.png")
    print(report.markdown(results))


def _soak(minutes: float, out: Path) -> None:
    result = soak.run(minutes, _say)
    (out / "gateway-soak.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    print(
        f"{minutes:g} minutes: {result.idle_mib:.1f} MiB idle, {result.warm_mib:.1f} warm,"
        f" {result.end_mib:.1f} at the end; growth {result.growth_mib_per_minute:+.3f} MiB/minute,"
        f" in the last quarter {result.late_growth_mib_per_minute:+.3f};"
        f" {result.whole.requests + result.streams.finished:,} answers,"
        f" {result.whole.errors + result.streams.errors + result.streams.lost} failed"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
