"""A child process with everything it starts: its memory, its CPU time, its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from prime_inference.bench.gateway.machine import pinned

START_SECONDS = 120  # LiteLLM imports for 20 s on a busy core
STOP_SECONDS = 10
IDLE_LIMIT = 30.0  # LiteLLM goes on working for clients that left
IDLE_WINDOW = 0.2
IDLE_SHARE = 0.1  # of a core: above what timers take, below any request under way
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024


class StartFailed(Exception):
    """A process did not come up; the message ends with its last words."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Child:
    """A process in a session of its own, pinned to one core, its output in a file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        core: int,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        with log.open("wb") as output, pinned(core):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        self._paused = False

    def wait_until(self, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Return when `ready()`. Raises StartFailed when the process ends or time is up."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self._process.poll() is not None:
                raise StartFailed(f"ended with status {self._process.returncode}: {self._words()}")
            if time.monotonic() > deadline:
                raise StartFailed(f"not ready after {seconds:.0f} s: {self._words()}")
            time.sleep(0.05)

    def _words(self) -> str:
        return self.log.read_text(errors="replace")[-800:].strip()

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self.log.read_text(errors="replace")

    def memory_mib(self) -> float:
        """Resident memory of the process and its descendants."""
        pages = sum(int(_read(pid, "statm").split()[1]) for pid in self._tree())
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def cpu_seconds(self, *pids: int) -> float:
        """User and system time that it and its living descendants have used, or only `pids`."""
        return sum(sum(map(int, _stat(pid)[11:13])) for pid in pids or self._tree()) / TICKS

    def children(self, part: str) -> list[int]:
        """Children that have a session of their own, and `part` in their command line."""
        tree = self._tree()
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        found = [pid for pid in pids if (stat := _stat(pid)) and int(stat[1]) in tree]
        return [pid for pid in found if pid not in tree and part in _read(pid, "cmdline")]

    def pause_only(self, pid: int) -> None:
        """Take one of its processes off the core."""
        os.kill(pid, signal.SIGSTOP)

    def resume_only(self, pid: int) -> None:
        """Undo `pause_only`."""
        os.kill(pid, signal.SIGCONT)

    def wait_until_idle(self) -> None:
        """Return when it has nothing left to do from before, or after IDLE_LIMIT seconds."""
        deadline = time.monotonic() + IDLE_LIMIT
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            time.sleep(IDLE_WINDOW)
            if self.cpu_seconds() - before <= IDLE_SHARE * IDLE_WINDOW:
                return

    def _tree(self) -> list[int]:
        """Every living process of the session."""
        session = self._process.pid
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in pids if (stat := _stat(pid)) and int(stat[3]) == session]

    def pause(self) -> None:
        """Take it off the core; what it has to do in the background waits."""
        if not self._paused:
            os.killpg(self._process.pid, signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        """Undo `pause`."""
        if self._paused:
            os.killpg(self._process.pid, signal.SIGCONT)
            self._paused = False

    def stop(self) -> None:
        """End it, gently first."""
        if self._process.poll() is not None:
            return
        self.resume()
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def core_seconds(core: int) -> float:
    """Time for which processes have had this core since the machine started.

    Without interrupts: those of a loopback connection are counted with the core, not with
    the process that causes them.
    """
    stat = Path("/proc/stat").read_text()
    fields = next(line.split() for line in stat.splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system = map(int, fields[1:4])
    return (user + nice + system) / TICKS


def _read(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on; empty if the process has gone."""
    try:
        return _read(pid, "stat").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
