"""A gateway as the process that an operator runs, and as a fault finds it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_inference.bench.faults.ports import kept_port

START_SECONDS = 60.0
STOP_SECONDS = 40.0  # the gateway drains for 30
COMMAND = (sys.executable, "-m", "prime_inference.cli", "inference", "gateway")


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of an attempt, in seconds; see `gateway.clocks`.

    Short ones for engines that answer in milliseconds: a first token that takes 10 s is a
    fault here, as it is to Failover Bench's reference client.
    """

    connect: float = 2.0
    first_token: float = 10.0
    idle: float = 10.0

    def options(self) -> list[str]:
        """As options of the gateway's command."""
        return [
            "--connect-seconds", str(self.connect),
            "--first-token-seconds", str(self.first_token),
            "--idle-seconds", str(self.idle),
        ]  # fmt: skip


class Replica:
    """One gateway process on a port that it keeps over restarts."""

    def __init__(
        self,
        folder: Path,
        config: Path,
        store_url: str | None,
        *,
        clocks: Clocks,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str | Path] = (),
        most_files: int | None = None,
    ) -> None:
        self.folder = folder
        self._config = config
        self._store_url = store_url
        self._clocks = clocks
        self._environment = dict(environment or {})
        self._prefix = list(prefix)
        self._most_files = most_files
        self._port = kept_port()
        self._process: asyncio.subprocess.Process | None = None
        self.base_url = f"http://127.0.0.1:{self._port}/api/v1"
        self.control_url = ""
        self.key = ""
        self.frozen = False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Return when it answers. Raises RuntimeError with its last words if it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [
            *self._prefix, *COMMAND, *self._clocks.options(),
            "--config", self._config, "--port", str(self._port), "--control-port", "0",
            "--state-dir", self.folder / "state", "--output", "json",
        ]  # fmt: skip
        if self._store_url is not None:
            command += ["--redis", self._store_url]
        with (self.folder / "gateway.err").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                env={**os.environ, **self._environment},
                preexec_fn=self._limit_files if self._most_files else None,
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                announced = await self._process.stdout.readline()
        except TimeoutError:
            announced = b""
        if not announced:
            await self.kill()
            raise RuntimeError(f"a gateway did not start: {self.errors()[-800:]}")
        said = json.loads(announced)
        self.control_url, self.key = said["control_url"], said["api_key"]

    def share_key(self, other: Replica) -> None:
        """Know the keys of another replica, which has been started before."""
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        for name in ("keys.json", "api_key"):
            shutil.copy(other.folder / "state" / name, self.folder / "state" / name)

    # -- faults

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)
        self.frozen = False

    async def kill(self) -> None:
        """As by the kernel's memory killer."""
        self._signal(signal.SIGKILL)
        await self._wait()
        self.frozen = False

    async def drain(self) -> int:
        """Stop it as a rollout does; returns its exit status."""
        if self.frozen:
            self.thaw()
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await self._wait()
        except TimeoutError:
            await self.kill()
            return -signal.SIGKILL

    async def stop(self) -> None:
        """End it, however it is."""
        if self.running:
            await self.kill()

    # -- what it wrote and holds

    def errors(self) -> str:
        """Everything it has written to its error output."""
        path = self.folder / "gateway.err"
        return path.read_text(errors="replace") if path.exists() else ""

    def generations(self) -> list[dict[str, object]]:
        """Its account of requests, as far as it is written out."""
        path = self.folder / "state" / "generations.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    def memory_mib(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def cpu_seconds(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208  # counting is all

    # --

    def _limit_files(self) -> None:
        assert self._most_files is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._most_files, self._most_files))

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _wait(self) -> int:
        assert self._process is not None
        status = await self._process.wait()
        if self._process.stdout is not None:
            await self._process.stdout.read()
        return status
