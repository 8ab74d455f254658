"""python -m prime_inference.bench.faults: see `make faults`."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from prime_inference.bench.faults.answers import ANSWERS
from prime_inference.bench.faults.clients import CLIENTS
from prime_inference.bench.faults.network import NETWORK
from prime_inference.bench.faults.published import PUBLISHED
from prime_inference.bench.faults.rollout import ROLLOUT
from prime_inference.bench.faults.scenario import Scenario, Scene
from prime_inference.bench.faults.scorecard import Finding, Row, Verdict, line, markdown
from prime_inference.bench.faults.stores import STORES
from prime_inference.bench.interruption import terminated_as_interrupted

SCENARIOS: tuple[Scenario, ...] = (
    *PUBLISHED, *NETWORK, *STORES, *CLIENTS, *ROLLOUT, *ANSWERS,
)  # fmt: skip
PREFACE = """\
Written by `make faults`: real gateway processes, mock engines and networks that misbehave on
demand, real sockets, a real Redis. Clocks of an attempt: connect 2 s, first token 10 s, idle
10 s. S01 to S16 are Failover Bench's with its limits, S01a and S03a the two in which the primary
is the model's only deployment; F01 and on are ours. `2p/1f`: requests that the primary and the
fallback saw."""


def main(
    only: Annotated[str, typer.Option(help="Scenarios by commas, e.g. S08,F01.")] = "",
    quick: Annotated[bool, typer.Option(help="Shorter where it only repeats.")] = False,
    jobs: Annotated[int, typer.Option(help="Scenarios at a time.", min=1)] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Folder for faults.json and faults.md; none: print only.")
    ] = None,
) -> None:
    """Play the scenarios and print the scorecard; exits 1 if one failed."""
    wanted = only.split(",") if only else [scenario.id for scenario in SCENARIOS]
    known = {scenario.id: scenario for scenario in SCENARIOS}
    if unknown := [name for name in wanted if name not in known]:
        raise typer.BadParameter(f"no scenario {unknown[0]!r}; there are {', '.join(known)}")
    with terminated_as_interrupted():
        rows = asyncio.run(_play_all([known[name] for name in wanted], quick=quick, jobs=jobs))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        data = msgspec.json.encode([row.as_object() for row in rows])
        (out / "faults.json").write_bytes(msgspec.json.format(data) + b"\n")
        (out / "faults.md").write_text(markdown(rows, PREFACE))
    verdicts = [row.finding.verdict for row in rows]
    print(", ".join(f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts))
    if Verdict.FAIL in verdicts:
        raise typer.Exit(1)


async def _play_all(scenarios: Sequence[Scenario], *, quick: bool, jobs: int) -> list[Row]:
    """Light ones `jobs` at a time, then the heavy ones one by one; in the order given."""
    rows: dict[str, Row] = {}
    places = asyncio.Semaphore(jobs)
    with tempfile.TemporaryDirectory() as folder:

        async def play(scenario: Scenario) -> None:
            async with places:
                scene = Scene(Path(folder) / scenario.id, quick)
                rows[scenario.id] = await _play(scenario, scene)

        async with asyncio.TaskGroup() as tasks:
            for scenario in scenarios:
                if not scenario.heavy:
                    tasks.create_task(play(scenario))
        for scenario in scenarios:
            if scenario.heavy:
                await play(scenario)
    return [rows[scenario.id] for scenario in scenarios]


async def _play(scenario: Scenario, scene: Scene) -> Row:
    try:
        finding = await scenario.play(scene)
    except Exception as error:  # a scenario that breaks is a failed one; the others go on
        traceback.print_exc()
        finding = Finding(outcome="broke off")
        finding.check("played", False, repr(error))
    row = Row(scenario.id, scenario.title, scenario.proves, finding)
    print(line(row), file=sys.stdout, flush=True)
    return row


if __name__ == "__main__":
    typer.run(main)
