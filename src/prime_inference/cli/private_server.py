"""A server of one's own for the duration of one command: `prime inference chat --serve`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

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
    its own, so that it disturbs no other server of this person. Raises ServerFailed, and
    SystemExit when this process is told to end.
    """
    gguf = model if model.lower().endswith(".gguf") else None
    with (
        unwinding_at_the_end(),
        tempfile.TemporaryDirectory(prefix="prime-inference-") as state_folder,
        running(serve_command(Path(state_folder), gguf)) as server,
    ):
        settings = Settings(Setting(server.base_url, SOURCE), Setting(server.api_key, SOURCE), None)
        yield settings, server.model if gguf else model


@contextlib.contextmanager
def unwinding_at_the_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process as Ctrl-C does, tidying up, not on the spot.

    Not by way of SIGINT, which in a conversation stops an answer only. Of the main thread only.
    A signal that is ignored or handled already stays so.
    """

    def end(number: int, frame: object) -> NoReturn:
        for other in ours:  # tidying up once is enough, and is not to be broken off
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    ours = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def serve_command(state_folder: Path, gguf: str | None) -> list[str]:
    """The command line of such a server, run by the Python that runs this."""
    command = [sys.executable, "-m", "prime_inference.cli", "inference", "serve"]
    command += ["--output", "json", "--port", "0", "--control-port", "0"]
    command += ["--state-dir", str(state_folder), "--private"]
    return command if gguf is None else [*command, "--model", gguf]


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[LocalServer]:
    """A server as a child process, from its announcement on; stopped at the end.

    Its messages and progress go to our stderr. Its standard input is a pipe whose end stops
    it, so that neither it nor its folder outlives this process even if that is killed. Raises
    ServerFailed.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for this process: it may only stop an answer
    )
    try:
        yield _wait_until_ready(process)
    finally:
        _stop(process)


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
        _kill(process)
    except KeyboardInterrupt:  # the person will not wait
        _kill(process)
        raise
    finally:
        _close(process.stdout)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the server and the processes of its session, its engine for one."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
