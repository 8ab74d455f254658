"""What processes write stays within bounds on disk: the last part of a log, and the one before.

Processes write to their files themselves, so that they outlive a supervisor, and always at the
end: a file's end is copied and it is emptied under them. What is written in between is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

MOST_BYTES = 64 << 20
LOOK_SECONDS = 10.0
PIECE_BYTES = 1 << 20
LEAST_BYTES = 1 << 16  # an empty file counts too: so there are a thousand at most

log = logging.getLogger(__name__)


async def keep_short(logs: Path, known: Callable[[], Collection[str]]) -> None:
    """Look at the logs again and again; `known` are the deployments that there are."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(turn_over, logs)
        await asyncio.to_thread(keep_few, logs, set(known()))


def turn_over(logs: Path, most: int = MOST_BYTES) -> None:
    """Begin each log of more than `most` bytes anew; `NAME.log.1` has the last half of that."""
    for file in logs.glob("*.log"):
        try:
            if file.stat().st_size > most:
                _keep_end(file, most // 2)
                os.truncate(file, 0)  # whatever became of the copy: this makes room
        except OSError as error:
            log.warning("log %s cannot be begun anew: %s", file, error)


def keep_few(logs: Path, known: Collection[str], most: int = MOST_BYTES) -> None:
    """Of deployments that are gone keep the `most` bytes that were written last."""
    gone = []
    for file in logs.glob("*.*.log*"):
        if file.name.partition(".")[0] not in known:
            with contextlib.suppress(OSError):
                gone.append((file.stat(), file))
    gone.sort(key=lambda one: one[0].st_mtime_ns, reverse=True)
    for found, file in gone:
        most -= max(found.st_size, LEAST_BYTES)
        if most < 0:
            file.unlink(missing_ok=True)


def _keep_end(file: Path, count: int) -> None:
    """Copy the last `count` bytes to `NAME.log.1`, if there is room for all of them."""
    kept = file.with_name(f"{file.name}.1")
    try:
        kept.unlink(missing_ok=True)  # the room it takes is needed
        with file.open("rb") as content, kept.open("wb") as copy:
            content.seek(-count, os.SEEK_END)
            while count and (piece := content.read(min(count, PIECE_BYTES))):
                copy.write(piece)
                count -= len(piece)
    except OSError as error:
        log.warning("the end of log %s is lost: %s", file, error)
        kept.unlink(missing_ok=True)
