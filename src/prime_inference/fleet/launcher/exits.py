"""How a process of a fleet ended, and what it wrote last."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from prime_inference.fleet.errors import CrashLooping

LAST_LINES = 5  # a traceback's last line says what, those before it where
LINE_CHARACTERS = 300
SIGNALS = {one.value: one.name for one in signal.Signals}
UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")  # colours and the like


class Exit(Struct, frozen=True):
    """The end of one run."""

    cause: str
    status: int | None  # negative: the signal; None: not known, or it did not start
    ran_seconds: float
    log: tuple[str, ...]  # the last lines of that run


def cause_of(status: int | None) -> str:
    """In words; `status` as `os.waitstatus_to_exitcode` has it."""
    if status is None:
        return "ended, how is not known"  # the child of another supervisor
    if status == -signal.SIGKILL:
        return "killed by SIGKILL, as the kernel does when memory is short"
    if status < 0:
        return f"killed by {SIGNALS.get(-status, f'signal {-status}')}"
    return f"exit status {status}"


def require_hope(deployment: str, process: Mapping[str, Any]) -> None:
    """`process` as its keeper's `status` has it. Raises CrashLooping if it will not serve."""
    ended = process["last_exit"]
    if process["state"] == "crash-looping" and not process["served"] and ended is not None:
        raise CrashLooping(
            deployment, process["name"], process["restarts"], ended["cause"], ended["log"]
        )


def last_words(log: Path, since: int) -> tuple[str, ...]:
    """The last lines with something in them that were written after byte `since`."""
    try:
        lines = last_lines(log, 4 * LAST_LINES, since)
    except OSError:  # somebody removed it
        return ()
    told = [UNPRINTABLE.sub("", line).rstrip()[:LINE_CHARACTERS] for line in lines]
    return tuple([line for line in told if line][-LAST_LINES:])


def last_lines(file: Path, count: int, since: int = 0) -> list[str]:
    """The end of a log, of what follows byte `since`. Raises OSError."""
    with file.open("rb") as content:
        size = file.stat().st_size
        since = since if since <= size else 0  # it was begun anew
        content.seek(max(since, size - count * 1000))  # longer lines are rare
        return content.read().decode(errors="replace").splitlines()[-count:]
