"""A mock engine as a process that can be killed and frozen."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys

import httpx

from prime_inference.bench.faults.ports import kept_port

START_SECONDS = 60.0
LOOKS = 6  # of 5 s each: on a machine that is busy with chaos it may answer late


class EngineProcess:
    """On a port that it keeps over restarts; remembers the most it had in flight."""

    def __init__(self, *, slots: int, pace_ms: float, first_token_ms: float, tokens: int) -> None:
        self.slots = slots
        self.most = 0
        self.untold = 0  # lives that ended before it could be asked what it had in flight
        self.starts = 0
        self._port = kept_port()
        self._options = [
            "--port", str(self._port), "--pace-ms", str(pace_ms),
            "--first-token-ms", str(first_token_ms), "--answer-tokens", str(tokens),
        ]  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None
        self._http = httpx.AsyncClient(trust_env=False, timeout=5)
        self.base_url = f"http://127.0.0.1:{self._port}/v1"

    async def start(self) -> None:
        """Return when it answers. Raises RuntimeError."""
        command = [
            sys.executable, "-m", "prime_inference.cli", "inference", "mock-engine",
            *self._options, "--output", "json",
        ]  # fmt: skip
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            if not json.loads(await self._process.stdout.readline() or b"null"):
                raise RuntimeError("a mock engine did not start")
        self.starts += 1

    async def kill(self) -> None:
        await self.look()
        self._signal(signal.SIGKILL)
        assert self._process is not None
        await self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    async def look(self) -> None:
        """Take over what it counted; note if it does not say."""
        for _ in range(LOOKS):
            with contextlib.suppress(httpx.TransportError):
                response = await self._http.get(f"http://127.0.0.1:{self._port}/mock/load")
                self.most = max(self.most, response.json()["most"])
                return
            await asyncio.sleep(0.5)
        self.untold += 1

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        await self._http.aclose()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)
