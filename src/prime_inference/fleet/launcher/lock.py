"""One supervisor at a time for a fleet's folder."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time

from prime_inference.fleet.errors import FleetRunning
from prime_inference.fleet.launcher.state import StateFolder

DYING_SECONDS = 2.0  # the kernel ends a killed process at once


def take_lock(folder: StateFolder) -> int:
    """A lock that the kernel gives back when its holder dies; it says who that is. Raises
    FleetRunning."""
    handle = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise FleetRunning(
            f"Process {folder.supervisor() or '(unknown)'} supervises the fleet in"
            f" {folder.folder} already."
        ) from None
    with contextlib.suppress(OSError):  # a full disk: it is locked all the same
        os.ftruncate(handle, 0)
        os.write(handle, b"%d\n" % os.getpid())
    return handle


async def lock_of_the_dead(folder: StateFolder) -> int:
    """One that was killed just now may hold it for a moment."""
    until = time.monotonic() + DYING_SECONDS
    while True:
        try:
            return take_lock(folder)
        except FleetRunning:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.05)
