"""A server of one's own for the duration of one command: `prime inference chat --serve`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from prime_inference.cli.failures import ServerFailed
from prime_inference.cli.local_server import LocalServer
from prime_inference.cli.settings import Setting, Settings

SOURCE = "the server that this command started"
STOP_SECONDS = 10.0  # to drain and to stop the engine's process; then it is killed


@contextlib.contextmanager
def private_server(model: str) -> Iterator[tuple[Settings, str]]:
    """Start a server on free ports, yield how to reach it and its model's id, stop it.

    `model` is the id to ask for, or a GGUF file to serve. The server has a state folder of
    its own, so that it disturbs no other server of this person, and a pipe as its standard
    input whose end stops it, so that it does not outlive this process even if that is
    killed. Raises ServerFailed.
    """
    with tempfile.TemporaryDirectory(prefix="prime-inference-") as state_folder:
        gguf = model if model.lower().endswith(".gguf") else None
        process = _start(Path(state_folder), gguf)
        try:
            server = _wait_until_ready(process)
            settings = Settings(
                Setting(server.base_url, SOURCE), Setting(server.api_key, SOURCE), None
            )
            yield settings, server.model if gguf else model
        finally:
            _stop(process)


def _start(state_folder: Path, gguf: str | None) -> subprocess.Popen[bytes]:
    """The server as a child process; its messages and progress go to our stderr."""
    command = [sys.executable, "-m", "prime_inference.cli", "inference", "serve"]
    command += ["--output", "json", "--port", "0", "--control-port", "0"]
    command += ["--state-dir", str(state_folder), "--until-stdin-closes"]
    if gguf is not None:
        command += ["--model", gguf]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this process: it may only stop an answer
    )


def _wait_until_ready(process: subprocess.Popen[bytes]) -> LocalServer:
    """The line that the server prints once it answers."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        status = process.wait()
        raise ServerFailed(
            f"The server stopped before it was ready (exit code {status}).",
            hint="Its messages are above.",
        )
    try:
        return msgspec.json.decode(line, type=LocalServer)
    except ValueError as error:
        raise ServerFailed(f"The server announced itself in a way unknown here: {error}") from error


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    _close(process.stdin)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # it hangs, or the person pressed Ctrl-C again; nothing happens if it has ended
        process.kill()
        process.wait()
        _close(process.stdout)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
