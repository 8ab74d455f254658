"""One `prime inference bench run`, from what was asked for to its summary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prime_inference.bench.interruption import terminated_as_interrupted
from prime_inference.cli.bench_summary import failures, write_summary
from prime_inference.cli.failures import CommandFailed
from prime_inference.cli.terminal import Terminal

if TYPE_CHECKING:
    from prime_inference.bench.agents.metrics import Hardware, Slo
    from prime_inference.bench.agents.plan import Options
    from prime_inference.bench.agents.run import Run, Target
    from prime_inference.bench.agents.summary import Summary
    from prime_inference.bench.agents.workload import Workload
    from prime_inference.cli.bench_progress import BenchProgress


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRun:
    """What is measured and into which folder.

    `counts` are sessions at a time; `highest` is the most that a search for them may try, None
    measures them all. `read_workload` and `tools` are read when the run begins, since what is
    wrong with them is told beside its progress.
    """

    target: Target
    slo: Slo
    counts: Sequence[int]
    rates: Sequence[float]
    seeds: Sequence[int]
    options: Options
    hardware: Hardware
    highest: int | None
    out: Path
    read_workload: Callable[[], Workload]
    tools: Path | None
    resume: bool

    def measured(self, terminal: Terminal, *, plain: bool) -> Summary:
        """Run it with its progress; of one that is cut short, what there is in `out` is kept."""
        import uvloop

        from prime_inference.cli.bench_progress import BenchProgress

        try:
            with BenchProgress(plain=plain) as progress, terminated_as_interrupted():
                uvloop.run(self._measure(progress, terminal))
        except BaseException:
            # what was measured is shown where it can be; what went wrong is what is told
            with contextlib.suppress(CommandFailed, OSError):
                if (self.out / "results.json").exists():
                    self._summary(terminal)
            raise
        return self._summary(terminal)

    def _summary(self, terminal: Terminal) -> Summary:
        return write_summary(self.out, self.slo, self.hardware, terminal)

    async def _measure(self, progress: BenchProgress, terminal: Terminal) -> None:
        from prime_inference.bench.agents.run import Run, sweep
        from prime_inference.bench.agents.tool_calls import Tools

        with failures():
            workload = self.read_workload()
            schemas = None if self.tools is None else Tools.load(self.tools)
            self.out.mkdir(parents=True, exist_ok=True)
            async with Run(
                self.target, workload, self.options, self.out, progress, tools=schemas,
                cold=any(self.rates),
            ) as run:  # fmt: skip
                if self.highest is not None:
                    await self._search(run, self.highest, terminal)
                else:
                    counts = [0] if self.options.session_rate else self.counts
                    points = sweep(counts, self.rates, self.seeds)
                    await run.measure(points, resume=self.resume)

    async def _search(self, run: Run, highest: int, terminal: Terminal) -> None:
        found = await run.search(
            self.slo, start=self.counts[0], highest=highest, cold_rate=self.rates[0],
            seeds=self.seeds,
        )  # fmt: skip
        bound = "" if found.bounded else ", the most that was allowed"
        terminal.success(f"{found.best} sessions hold {self.slo.e2e:g} tok/s/user{bound}")
