"""Finding the server that runs on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_inference.cli.folders import cache_folder, state_folder
from prime_inference.cli.local_server import LocalServer, find_local_server

from .conftest import Prime
from .scripted_server import ScriptedServer

URL = "http://127.0.0.1:8000/api/v1"


def write_state(folder: Path, pid: int, base_url: str = URL) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    document = {"base_url": base_url, "control_url": "http://x", "model": "m", "pid": pid}
    (folder / "endpoint.json").write_text(json.dumps(document))
    (folder / "api_key").write_text("its-key\n")


def test_a_running_server_is_found(tmp_path: Path):
    write_state(tmp_path, os.getpid())
    assert find_local_server(tmp_path) == LocalServer(URL, "m", "its-key", "http://x")


def test_a_server_that_died_is_not_found(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    write_state(tmp_path, process.pid)
    assert find_local_server(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"base_url": 5, "pid": 1}', '{"pid": 1}'])
def test_a_state_folder_that_cannot_be_read_has_no_server(tmp_path: Path, content: str):
    write_state(tmp_path, os.getpid())
    (tmp_path / "endpoint.json").write_text(content)
    assert find_local_server(tmp_path) is None
    assert find_local_server(tmp_path / "absent") is None


def test_the_command_finds_it_with_nothing_set(prime: Prime, server: ScriptedServer, home: Path):
    write_state(home / ".local/state/prime-inference", os.getpid(), server.url)
    result = prime("inference", "chat", "plain", "hi", PRIME_INFERENCE_URL=None, PRIME_API_KEY=None)
    assert (result.exit_code, result.stdout) == (0, "Hello, wörld.\n")
    assert server.chat_requests[0].headers["authorization"] == "Bearer its-key"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "/home/me/.local/state/prime-inference"),
        ({"XDG_STATE_HOME": "/s"}, "/s/prime-inference"),
        ({"XDG_STATE_HOME": "relative"}, "/home/me/.local/state/prime-inference"),
        ({"XDG_STATE_HOME": "/s", "PRIME_STATE_DIR": "/mine"}, "/mine"),
    ],
)
def test_where_the_state_folder_is(environ: dict[str, str], expected: str):
    assert state_folder(environ, Path("/home/me")) == Path(expected)


def test_where_the_cache_folder_is():
    assert cache_folder({}, Path("/home/me")) == Path("/home/me/.cache/prime-inference")
    assert cache_folder({"PRIME_CACHE_DIR": "/mine"}, Path("/home/me")) == Path("/mine")
