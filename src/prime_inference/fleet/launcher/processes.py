"""Process groups on Linux: started apart from us, found again, watched, ended whole.

A child is the leader of a session of its own and writes to files, so it outlives the
process that started it. Its environment names the fleet and the process it is, so whoever
supervises the fleet next finds it; a process that rewrote its environment is found by the
id and start time in the fleet's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

FLEET = "PRIME_FLEET"
PROCESS = "PRIME_FLEET_PROCESS"
RECORD = "PRIME_FLEET_RECORD"

KILL_SECONDS = 5.0  # the kernel ends a killed process at once, unless a device holds it

END_LOOKS = 2  # a process may have been started while the others were ended

STAT_PARENT = 4  # as below
STAT_START_TIME = 22  # field of /proc/PID/stat, from 1: clock ticks since boot (proc(5))


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told from a later one of the same id by the time of its start."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether it runs; one that ended and was not waited for does not."""
        return identity_of(self.pid) == self


def identity_of(pid: int) -> Identity | None:
    """The process of that id, or None when it is gone or only waits to be reaped."""
    try:
        fields = _stat(pid)
    except OSError:
        return None
    if fields[0] in ("Z", "X"):
        return None
    return Identity(pid, int(fields[STAT_START_TIME - 3]))


def start(
    argv: list[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    fleet: str,
    name: str,
    record: str = "",
) -> int:
    """Start a process group that writes to `log`; its id. Raises OSError.

    `record` is what `members` gives back to a supervisor that knows nothing of the process. No
    object of the standard library's is kept for it: those want to see their child end.
    """
    told = {**os.environ, **environment, FLEET: fleet, PROCESS: name, RECORD: record}
    with log.open("ab") as output:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
        ]
        return os.posix_spawnp(argv[0], argv, told, file_actions=actions, setsid=True)


def reap(pid: int) -> int | None:
    """The exit status of a child that has ended, which stays no zombie; negative: the signal.

    None for one that runs, and for the child of another supervisor.
    """
    try:
        ended_pid, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if ended_pid else None


@dataclass(frozen=True, slots=True)
class Member:
    """A process of a fleet, as its environment tells."""

    name: str
    identity: Identity
    record: bytes


def members(fleet: str) -> Iterator[Member]:
    """Group leaders of the fleet, and strays whose leader is gone.

    What a process started in a session of its own is not one while that process lives.
    """
    found = {
        pid: (environment.get(PROCESS.encode(), b""), environment.get(RECORD.encode(), b""))
        for pid, environment in _environments()
        if _is_mark(environment.get(FLEET.encode(), b""), fleet)
    }
    for pid, (name, record) in found.items():
        identity = identity_of(pid)
        leads = group_of(pid) == pid
        inner = found.get(_parent(pid), (None,))[0] == name
        if identity is not None and (
            (leads and not inner) or (not leads and identity_of(group_of(pid)) is None)
        ):
            yield Member(name.decode(errors="replace"), identity, record)


def find(fleet: str) -> dict[str, list[Identity]]:
    """The same, by the process they are."""
    found: dict[str, list[Identity]] = {}
    for one in members(fleet):
        found.setdefault(one.name, []).append(one.identity)
    return found


def is_of(pid: int, fleet: Path) -> bool | None:
    """Whether a process is of the fleet in that folder, by its environment; None where that does
    not say: some programs write over it, and the folder may have been moved since."""
    try:
        mark = _environment(pid).get(FLEET.encode(), b"")
    except OSError:
        return None
    return _is_mark(mark, str(fleet))


def _is_mark(mark: bytes, fleet: str) -> bool | None:
    if not mark or mark == os.fsencode(fleet):
        return bool(mark) or None
    try:
        return Path(os.fsdecode(mark)).samefile(fleet)  # by another way, or another one
    except OSError:
        return None


def _environments() -> Iterator[tuple[int, dict[bytes, bytes]]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it ended, or it is somebody else's
                yield int(entry.name), _environment(int(entry.name))


def _environment(pid: int) -> dict[bytes, bytes]:
    """Raises OSError."""
    pairs = (
        item.partition(b"=") for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    )
    return {name: value for name, _, value in pairs}


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[STAT_PARENT - 3])
    except OSError:
        return -1


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat, from the third on. Raises OSError."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()  # the name before it may hold anything


def group_of(pid: int) -> int:
    """-1 where there is no such process."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


async def ended(process: Identity) -> None:
    """Return when the process has ended; it need not be a child of ours."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(descriptor, done.set)
    try:
        if process.alive:  # not a later process of the same id
            await done.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def signal_group(process: Identity, number: signal.Signals) -> None:
    """Send a signal to everything the process started and that is still of its group."""
    found = identity_of(process.pid)
    if found not in (None, process):
        return  # the id is somebody else's by now, so nothing of the group is left
    # one that outlived its leader is of a group of another id
    group = process.pid if found is None else group_of(process.pid)
    with contextlib.suppress(ProcessLookupError):
        if group == os.getpgrp():
            os.kill(process.pid, number)
        elif group > 0:
            os.killpg(group, number)


async def end_group(process: Identity, grace_seconds: float) -> None:
    """Ask the group to end, wait for its leader, then kill what is left of it."""
    signal_group(process, signal.SIGTERM)
    signal_group(process, signal.SIGCONT)  # a stopped process hears nothing before
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended(process), grace_seconds)
    signal_group(process, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(ended(process), KILL_SECONDS)


async def end_all(
    found: Callable[[], Mapping[Identity, str]], turn: Callable[[str], int], grace_seconds: float
) -> list[str]:
    """End every process that is found, and look again: those that live on, by name and id.

    `turn` of a name: those of a lower one end first, since they need the others to finish.
    """
    for _ in range(END_LOOKS):
        names = found()
        for number in sorted(set(map(turn, names.values()))):
            some = [one for one, name in names.items() if turn(name) == number]
            await asyncio.gather(*(end_group(one, grace_seconds) for one in some))
            for one in some:
                reap(one.pid)
    return sorted(f"{name} (process {one.pid})" for one, name in found().items())
