"""A scripted server, and the `prime` command in this process and as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prime_inference.cli.main import app

from .scripted_server import ScriptedServer

Prime = Callable[..., Result]
COMMAND = [sys.executable, "-m", "prime_inference.cli"]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """What a child process sees: nothing of the person who runs the tests."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "LANG", "PYTHONPATH", "TMPDIR")
        if name in os.environ
    }
    return {**kept, "HOME": str(home)}


@pytest.fixture
def to_server(environment: dict[str, str], server: ScriptedServer) -> dict[str, str]:
    """An environment that names the scripted server and a key for it."""
    return {**environment, "PRIME_INFERENCE_URL": server.url, "PRIME_API_KEY": "pi-test-key"}


@pytest.fixture
def prime(to_server: dict[str, str]) -> Prime:
    """Runs `prime ARGS` in this process against the scripted server."""

    def run(*args: str, stdin: str | bytes | None = None, **env: str | None) -> Result:
        gone = {name: None for name in os.environ if name.startswith(("PRIME_", "XDG_"))}
        return CliRunner().invoke(
            app, args, input=stdin, env={**gone, **to_server, **env}, catch_exceptions=False
        )

    return run


@pytest.fixture
def child(to_server: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs `prime ARGS` as a child process against the scripted server."""

    def run(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [*COMMAND, *args], input=stdin, capture_output=True, env={**to_server, **env},
            timeout=30, check=False,
        )  # fmt: skip

    return run
