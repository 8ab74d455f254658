"""Our figures beside aiperf's for one trace on one server, in a table.

    python scripts/aiperf_agreement.py OUR_FOLDER AIPERF_FOLDER

OUR_FOLDER is of `prime inference bench run`, AIPERF_FOLDER holds aiperf's
profile_export.jsonl. Ours counts the first play of every session, as aiperf sends each once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.results import read_results

TOLERANCE = 0.02

Row = tuple[float, float, float | None, int]
"""Time to first token, latency, inter-token latency in seconds; output tokens."""


def ours(folder: Path) -> list[Row]:
    """Successful requests of each session's first play."""
    records = [r for r in read_results(folder).records if r.phase == "profiling"]
    first = {session: min(r.play for r in records if r.session == session)
             for session in {r.session for r in records}}  # fmt: skip
    return [
        (r.ttft or 0.0, r.e2el, r.itl, r.osl)
        for r in records if r.ok and r.osl and r.play == first[r.session]
    ]  # fmt: skip


def theirs(folder: Path) -> list[Row]:
    """Successful requests of the profiling phase."""
    rows: list[Row] = []
    for line in (folder / "profile_export.jsonl").read_text().splitlines():
        record = json.loads(line)
        metrics = record["metrics"]
        if record["metadata"]["benchmark_phase"] != "profiling" or "request_latency" not in metrics:
            continue
        itl = metrics.get("inter_token_latency")
        rows.append((
            metrics["time_to_first_token"]["value"] / 1000,
            metrics["request_latency"]["value"] / 1000,
            None if itl is None else itl["value"] / 1000,
            round(metrics["output_sequence_length"]["value"]),
        ))  # fmt: skip
    return rows


def figures(rows: Sequence[Row]) -> dict[str, float]:
    """What is compared; interactivity is the percentile's inverse."""
    found: dict[str, float] = {}
    for q in (50, 90):
        found[f"TTFT P{q} (ms)"] = percentile([row[0] for row in rows], q) * 1000
    for q in (50, 90):
        itls = [row[2] for row in rows if row[2] is not None]
        found[f"ITL P{q} (ms)"] = percentile(itls, q) * 1000
    for q in (50, 75, 90):
        per_token = [row[1] / row[3] for row in rows]
        found[f"E2E norm. interactivity P{q} (tok/s/user)"] = 1 / percentile(per_token, q)
    return found


def main() -> int:
    one, other = ours(Path(sys.argv[1])), theirs(Path(sys.argv[2]))
    print("| metric | prime inference bench | aiperf | difference |\n|---|---|---|---|")
    print(f"| requests | {len(one)} | {len(other)} | {len(one) - len(other)} |")
    mine, yours = figures(one), figures(other)
    worst = 0.0
    for name, value in mine.items():
        difference = value / yours[name] - 1
        worst = max(worst, abs(difference))
        print(f"| {name} | {value:.2f} | {yours[name]:.2f} | {difference:+.2%} |")
    return worst > TOLERANCE or len(one) != len(other)


if __name__ == "__main__":
    sys.exit(main())
