"""Who listens on a port of this machine, by /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from prime_inference.fleet.launcher.processes import Identity, group_of

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ADDRESS, STATE, INODE = 1, 3, 9  # fields of a line of them (proc(5))
LISTENING = "0A"


def listens(leader: Identity, port: int) -> bool:
    """Whether a process of the group listens on the port; True too where nobody can tell."""
    try:
        wanted = set(_listening(port))
        return any(not wanted.isdisjoint(_sockets(pid)) for pid in _members(leader.pid))
    except OSError:
        return True


def _listening(port: int) -> Iterator[str]:
    """Sockets that listen on the port, as the kernel names them. Raises OSError."""
    for table in TABLES:
        if not table.exists():  # a kernel without IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[STATE] == LISTENING and fields[ADDRESS].endswith(f":{port:04X}"):
                yield f"socket:[{fields[INODE]}]"


def _members(group: int) -> Iterator[int]:
    """The leader first: it is nearly always the one."""
    yield group
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != group and group_of(int(entry.name)) == group:
            yield int(entry.name)


def _sockets(pid: int) -> Iterator[str]:
    """What a process has open. Raises OSError where that may not be seen."""
    try:
        entries = list(os.scandir(f"/proc/{pid}/fd"))
    except FileNotFoundError:  # it has ended
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            yield str(Path(entry.path).readlink())
