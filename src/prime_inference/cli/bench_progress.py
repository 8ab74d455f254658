"""How a benchmark goes: a live line on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any

from prime_inference.bench.agents.records import Record

if TYPE_CHECKING:
    from prime_inference.bench.agents.plan import Point
    from prime_inference.bench.agents.point import PointRun

REFRESH = 0.25  # seconds on a terminal: four times a second reads as live
LINE = 10.0  # seconds between lines of a log
RECENT = 500  # requests over which the live numbers are


class BenchProgress:
    """Writes to stderr. Use as a context manager."""

    def __init__(self, *, plain: bool) -> None:
        self._live = sys.stderr.isatty() and not plain
        self._every = REFRESH if self._live else LINE
        self._status: Any = None
        self._title = ""
        self._shown = 0.0
        self._counts = {"ok": 0, "failed": 0, "cold": 0}
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    def __enter__(self) -> BenchProgress:
        if self._live:
            from rich.console import Console

            self._status = Console(stderr=True).status("calibrating")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._status is not None:
            self._status.stop()

    def point(self, point: Point, number: int, of: int | None) -> None:
        position = f"{number + 1}/{of}" if of else f"{number + 1}"
        self._title = f"point {position}: {point.sessions} sessions, seed {point.seed}"
        if point.cold_rate:
            self._title += f", cold {point.cold_rate:g}/s"
        self._counts = dict.fromkeys(self._counts, 0)
        self._recent.clear()
        self._show(f"{self._title}, warming up")

    def record(self, record: Record, in_flight: int) -> None:
        if record.phase == "profiling" and record.ended:
            self._counts["ok" if record.ok else "failed"] += 1
            self._counts["cold"] += record.kind == "cold"
            if record.ok and record.osl and record.ttft is not None:
                self._recent.append((record.osl / record.e2el, record.ttft))
        if time.monotonic() - self._shown >= self._every:
            self._show(self._line(record.end, in_flight))

    def done(self, run: PointRun) -> None:
        self._show(self._line(run.end, 0))

    def _line(self, seconds: float, in_flight: int) -> str:
        counts = self._counts
        line = f"{self._title} | {seconds:.0f} s | in flight {in_flight} | ok {counts['ok']}"
        line += f" | failed {counts['failed']}" + (
            f" | cold {counts['cold']}" * bool(counts["cold"])
        )
        if self._recent:
            speeds, firsts = (sorted(values) for values in zip(*self._recent, strict=True))
            middle = len(speeds) // 2
            line += f" | {speeds[middle]:.1f} tok/s/user | TTFT {firsts[middle] * 1000:.0f} ms"
        return line

    def _show(self, text: str) -> None:
        self._shown = time.monotonic()
        if self._status is not None:
            self._status.update(text)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()
