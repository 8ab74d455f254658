"""How far a download is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

STEPS = 10  # of the whole; ten lines tell a log enough
STEP_SECONDS = 5.0  # silence beyond this looks like a hang
MEGABYTE = 1_000_000


class DownloadProgress:
    """Shows the progress of one download; call it with bytes done and bytes in all.

    It shows nothing before the first call, and ends by itself with the last byte; used as a
    context manager it also ends when the download fails. Calls may come from any one thread.
    """

    def __init__(self, what: str, *, plain: bool = False) -> None:
        self._what = what
        self._view: _Bar | _Lines | None = None
        self._plain = plain

    def __call__(self, done: int, total: int | None) -> None:
        if self._view is None:
            bar = sys.stderr.isatty() and not self._plain
            self._view = _Bar(self._what) if bar else _Lines(self._what, sys.stderr)
        self._view.update(done, total)
        if total is not None and done >= total:
            self._view.close()

    def __enter__(self) -> DownloadProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._view is not None:
            self._view.close()


class _Bar:
    def __init__(self, what: str) -> None:
        self._progress = _rich_progress()
        self._task: TaskID = self._progress.add_task(what, total=None)
        self._progress.start()

    def update(self, done: int, total: int | None) -> None:
        self._progress.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._progress.stop()


def _rich_progress() -> Progress:
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )


class Milestones:
    """When a log deserves a line: at the start, every step, every few seconds, at the end."""

    def __init__(self) -> None:
        self._step = -1
        self._time = 0.0

    def due(self, done: int, total: int | None, now: float) -> bool:
        """Whether to write a line now; it counts as written."""
        if self._step == STEPS:
            return False
        step = min(STEPS, done * STEPS // total) if total else 0
        if step == self._step and now - self._time < STEP_SECONDS:
            return False
        self._step = step
        self._time = now
        return True


class _Lines:
    def __init__(self, what: str, stream: TextIO) -> None:
        self._what = what
        self._stream = stream
        self._milestones = Milestones()

    def update(self, done: int, total: int | None) -> None:
        if self._milestones.due(done, total, time.monotonic()):
            print(f"{self._what}: {amount(done, total)}", file=self._stream, flush=True)

    def close(self) -> None:
        pass


def amount(done: int, total: int | None) -> str:
    """`43.1 of 144.8 MB (29 %)`, in megabytes of a million bytes."""
    if not total:
        return f"{done / MEGABYTE:.1f} MB"
    return f"{done / MEGABYTE:.1f} of {total / MEGABYTE:.1f} MB ({100 * done // total} %)"
