"""What processes write stays within bounds on disk: the last part of a log, and the one before.

Processes write to their files themselves, so that they outlive a supervisor, and always at the
end: a file's end is copied and it is emptied under them. What is written in between is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

MOST_BYTES = 64 << 20
LOOK_SECONDS = 10.0
PIECE_BYTES = 1 << 20

log = logging.getLogger(__name__)


async def keep_short(logs: Path) -> None:
    """Look at the logs again and again."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(turn_over, logs)


def turn_over(logs: Path, most: int = MOST_BYTES) -> None:
    """Begin each log of more than `most` bytes anew; `NAME.log.1` has the last half of that."""
    for file in logs.glob("*.log"):
        try:
            if file.stat().st_size > most:
                _keep_end(file, most // 2)
                os.truncate(file, 0)  # whatever became of the copy: this makes room
        except OSError as error:
            log.warning("log %s cannot be begun anew: %s", file, error)


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
