"""What processes write stays within bounds on disk: the last part of a log, and the one before.

Processes write to their files themselves, so that they outlive a supervisor, and always at the
end: a file is copied and emptied under them. What is written in between is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from pathlib import Path

MOST_BYTES = 64 << 20
LOOK_SECONDS = 10.0

log = logging.getLogger(__name__)


async def keep_short(logs: Path) -> None:
    """Look at the logs again and again."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await asyncio.to_thread(turn_over, logs)


def turn_over(logs: Path, most: int = MOST_BYTES) -> None:
    """Begin each log of more than `most` bytes anew; `NAME.log.1` has what it held."""
    for file in logs.glob("*.log"):
        try:
            if file.stat().st_size > most:
                shutil.copyfile(file, file.with_name(f"{file.name}.1"))
                os.truncate(file, 0)
        except OSError as error:  # a full disk: the next look may find room
            log.warning("log %s cannot be begun anew: %s", file, error)
