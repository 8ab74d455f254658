"""Keeps an engine's process alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from prime_inference.domain.backoff import Backoff
from prime_inference.domain.errors import CannotStart
from prime_inference.reliability.background import Background

log = logging.getLogger(__name__)

State = Literal["stopped", "starting", "ready", "restarting"]

START_SECONDS = 300.0  # a 100 GB model from a slow disk
STOP_SECONDS = 5.0  # SIGTERM ends it at once; only a process that the kernel holds takes longer
PROBE_SECONDS = 10.0  # between two looks at whether the engine still works
STUCK_SECONDS = 60.0  # a batch of a 70B model on a few cores takes half of that
STDERR_BYTES = 16 * 1024  # about 120 lines; a file that cannot be loaded makes 30


class EngineFailed(CannotStart):
    """The engine could not be started; `log_lines` are its last words, for whoever wants them."""

    def __init__(self, message: str, log_lines: list[str]) -> None:
        super().__init__(message)
        self.log_lines = log_lines


class _OfDeployment(logging.LoggerAdapter[logging.Logger]):
    """Each line says which deployment it is about."""

    def __init__(self, deployment: str) -> None:
        super().__init__(log, {})
        self._prefix = f"deployment {deployment}: " if deployment else ""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix}{msg}", kwargs


class SupervisedEngine(ABC):
    """One engine in a child process on loopback, restarted when it dies or is stuck.

    `deployment` is the one that it serves; log lines name it.

    `base_url` stays the same over restarts. A request that is in flight when the process
    dies sees its connection break; those that follow are refused until it is back.
    """

    program: ClassVar[str]
    environment: ClassVar[Mapping[str, str]] = {}  # over that of this process
    probe_path: ClassVar[str]  # answered by whatever does the engine's work

    def __init__(
        self,
        subject: str,
        *,
        deployment: str = "",
        causes: str = "",
        log_file: Path | None = None,
        probe_seconds: float = PROBE_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self._log = _OfDeployment(deployment)
        self._subject = subject
        self._causes = causes
        self._log_file = log_file
        self._probe_seconds = probe_seconds
        self._stuck_seconds = stuck_seconds
        self._reservation: socket.socket | None = None
        self._port = 0
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = b""
        self._drain: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.state: State = "stopped"
        self.restarts = 0

    @abstractmethod
    def arguments(self, port: int) -> list[str]:
        """Of the Python interpreter, for a child that listens on `port`.

        It writes a line to standard output when it listens, and ends with standard input.
        """

    @property
    def base_url(self) -> str:
        """Where the engine is from its start to its stop."""
        assert self._port, "not started"
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Return when the model is loaded. Raises EngineFailed."""
        self.state = "starting"
        self._reservation = _reserve_port()
        self._port = int(self._reservation.getsockname()[1])
        try:
            await self._spawn()
        except BaseException:
            await self.stop()
            raise
        self.state = "ready"
        background = Background(asyncio.get_running_loop().time)
        self._watch = background.start(f"watch of {self._subject}", self._keep_alive)

    async def stop(self) -> None:
        """End the process and give up the address."""
        self.state = "stopped"
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
            self._watch = None
        await self._end()
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    async def _spawn(self) -> None:
        self._stderr = b""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *self.arguments(self._port),
            stdin=asyncio.subprocess.PIPE,  # its end tells the child that we are gone
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self.environment},
            start_new_session=True,  # a Ctrl-C on the terminal is ours to answer, by draining
        )
        assert process.stdout is not None
        self._drain = asyncio.create_task(self._read_stderr(process))
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            raise self._failed(
                f"The engine did not load {self._subject} within {START_SECONDS:.0f} s"
            ) from None
        if not line:
            await process.wait()
            await self._drain
            raise self._failed(f"The engine could not load {self._subject}{self._causes}")

    def _failed(self, what: str) -> EngineFailed:
        """The error for a process that did not start; its last words go to the log file."""
        lines = self._stderr.decode(errors="replace").splitlines()
        if self._log_file is not None and lines:
            with contextlib.suppress(OSError):  # it is told all the same
                self._log_file.write_bytes(self._stderr)
                return EngineFailed(f"{what}. {self.program}'s log is in {self._log_file}.", lines)
        return EngineFailed(f"{what}.", lines)

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(STDERR_BYTES):
            self._stderr = (self._stderr + data)[-STDERR_BYTES:]

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while True:
            began = loop.time()
            if self._process is not None:  # else it could not be started again
                status = await self._until_dead(self._process)
                self._log.warning("the engine of %s died (status %d)", self._subject, status)
            self.state = "restarting"
            await self._start_again(backoff, loop.time() - began)
            self.restarts += 1
            self.state = "ready"
            self._log.info("the engine runs again")

    async def _start_again(self, backoff: Backoff, ran_seconds: float) -> None:
        """Try until it runs: whoever repairs the cause need not also restart us."""
        while True:
            pause = backoff.pause(ran_seconds)
            self._log.info("starting the engine in %.1f s", pause)
            await asyncio.sleep(pause)
            try:
                return await self._spawn()
            except (EngineFailed, OSError) as error:  # OSError: no memory for a process
                self._log.error("%s", error)
                await self._end()
                ran_seconds = 0.0

    async def _until_dead(self, process: asyncio.subprocess.Process) -> int:
        """The exit status of a process that died, or was killed because it was stuck."""
        died = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait({died}, timeout=self._probe_seconds))[0]:
                if not await self._works() and not died.done():
                    self._log.error("the engine is stuck; killing it")
                    process.kill()
                    break
            return await died
        finally:
            died.cancel()

    async def _works(self) -> bool:
        """Whether what does the work still takes orders."""
        try:
            async with asyncio.timeout(self._stuck_seconds):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    head = f"GET {self.probe_path} HTTP/1.1\r\nhost: engine\r\n"
                    writer.write(f"{head}connection: close\r\n\r\n".encode())
                    return bool(await reader.readline())
                finally:
                    writer.close()
        except OSError:  # no answer in time is one too
            return False

    async def _end(self) -> None:
        """End the process if it runs, and leave nothing of it."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.wait({self._drain})
            self._drain = None


def _reserve_port() -> socket.socket:
    """A socket that holds a free port for the engine while it is down.

    It never listens, so connections go to the engine or are refused; only a process of the
    same user that also asks for SO_REUSEPORT can take the port.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
