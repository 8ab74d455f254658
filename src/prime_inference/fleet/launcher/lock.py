"""One supervisor at a time for a fleet's folder."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable

from prime_inference.fleet.errors import FleetRunning
from prime_inference.fleet.launcher.state import StateFolder

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # a second supervisor takes longer to start
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


class FolderLock:
    """What a supervisor holds for as long as it supervises."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._handle: int | None = None

    def take(self) -> None:
        """Make the folder, and keep others out of it. Raises FleetRunning, OSError."""
        self._folder.create()
        before, self._handle = self._handle, take_lock(self._folder)
        if before is not None:
            os.close(before)

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    async def keep(self, made_anew: Callable[[], None]) -> None:
        """Take it again whenever somebody has removed the folder, since it keeps nobody out then;
        return when another supervisor has taken it."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._holds():
                continue
            try:
                self.take()
            except FleetRunning as error:
                log.error("this supervisor leaves: %s", error)
                return
            except OSError as error:
                log.error("%s is gone, and cannot be made: %s", self._folder.folder, error)
                continue
            log.error("%s was removed, and is made anew", self._folder.folder)
            made_anew()

    def _holds(self) -> bool:
        try:
            return self._handle is not None and os.path.samestat(
                os.fstat(self._handle), self._folder.lock_file.stat()
            )
        except OSError:
            return False
