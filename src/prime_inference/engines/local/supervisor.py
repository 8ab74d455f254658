"""Keeps the engine's process alive."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Literal

import msgspec

from prime_inference.domain.errors import CannotStart
from prime_inference.engines.local.settings import EngineSettings, engine_threads

log = logging.getLogger(__name__)

State = Literal["stopped", "starting", "ready", "restarting"]

START_SECONDS = 300.0  # a 100 GB model from a slow disk
STOP_SECONDS = 5.0  # the engine has nothing to save
BACKOFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # a crash is rare; a crash loop is not
HEALTHY_SECONDS = 60.0  # running this long, the next crash starts the backoff anew
STDERR_LINES = 20


class EngineFailed(CannotStart):
    """The engine could not be started; `log_lines` are its last words."""

    def __init__(self, message: str, log_lines: list[str]) -> None:
        super().__init__("\n  ".join([message, *log_lines]))
        self.log_lines = log_lines


class LocalEngine:
    """One llama.cpp server in a child process, restarted when it dies.

    `base_url` stays the same over restarts. A request that is in flight when the process
    dies sees its connection break; those that follow are refused until it is back.
    """

    def __init__(self, model_file: Path, *, slots: int, context_tokens: int) -> None:
        self._model_file = model_file
        self._slots = slots
        self._context_tokens = context_tokens
        self._port = _free_port()
        self._process: asyncio.subprocess.Process | None = None
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._drain: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.state: State = "stopped"
        self.restarts = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Return when the model is loaded. Raises EngineFailed."""
        self.state = "starting"
        try:
            await self._spawn()
        except BaseException:
            self.state = "stopped"
            await self._end()
            raise
        self.state = "ready"
        self._watch = asyncio.create_task(self._keep_alive())

    async def stop(self) -> None:
        self.state = "stopped"
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
            self._watch = None
        await self._end()

    async def _spawn(self) -> None:
        settings = EngineSettings(
            model_file=str(self._model_file),
            port=self._port,
            slots=self._slots,
            context_tokens=self._context_tokens,
            threads=engine_threads(),
            parent=os.getpid(),
        )
        self._stderr.clear()
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "prime_inference.engines.local.child",
            msgspec.json.encode(settings).decode(),
            stdin=asyncio.subprocess.PIPE,  # its end tells the child that we are gone
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        self._drain = asyncio.create_task(self._read_stderr(process))
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        except TimeoutError:
            raise EngineFailed(
                f"The engine did not load {self._model_file} within {START_SECONDS:.0f} s.",
                list(self._stderr),
            ) from None
        if not line:
            await process.wait()
            await self._drain
            raise EngineFailed(f"The engine could not load {self._model_file}.", list(self._stderr))

    async def _read_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        try:
            async for line in process.stderr:
                self._stderr.append(line.decode(errors="replace").rstrip())
        except ValueError:  # a line longer than the reader's limit: go on without the log
            await process.stderr.read()

    async def _keep_alive(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            assert self._process is not None
            began = loop.time()
            status = await self._process.wait()
            self.state = "restarting"
            if loop.time() - began > HEALTHY_SECONDS:
                failures = 0
            while True:
                pause = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
                log.warning("the engine died (status %s); starting it in %.1f s", status, pause)
                await asyncio.sleep(pause)
                failures += 1
                try:
                    await self._spawn()
                    break
                except EngineFailed as error:
                    status = -1
                    log.error("%s", error)
                    await self._end()
            self.restarts += 1
            self.state = "ready"

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.wait({self._drain})
            self._drain = None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
