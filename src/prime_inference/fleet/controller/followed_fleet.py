"""The fleet's file, followed as it changes, and with it the specs and models that it names."""

from __future__ import annotations

import logging
from pathlib import Path

from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.fleet import Fleet, read_fleet

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int] | str
"""What tells one content of a file from another; or why it cannot be looked at."""


class FollowedFleet:
    """What is wrong, gone or unreadable changes nothing, and is told once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[Path, Stamp] = {}  # as each was before it was read last

    def read(self) -> Fleet:
        """What it says now. Raises FleetError."""
        self._seen = {}
        return read_fleet(self._path, reading=self._note)

    def changed(self) -> Fleet | None:
        """What it says now, if it changed since it was read last and can be read."""
        now = {path: stamp(path) for path in self._seen}
        if now == self._seen:
            return None
        unreadable = now[self._path]
        if isinstance(unreadable, str):
            if unreadable != self._seen[self._path]:
                log.error("the fleet stays as it is: %s: %s", self._path, unreadable)
            self._seen = now
            return None
        try:
            return self.read()
        except FleetError as error:
            log.error("the fleet stays as it is: %s", error)
            return None

    def _note(self, path: Path) -> None:
        self._seen.setdefault(path, stamp(path))


def stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError as error:
        return error.strerror or str(error)
    return found.st_mtime_ns, found.st_ino, found.st_size
