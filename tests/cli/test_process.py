"""The command as a process: exit codes, signals, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

from .conftest import COMMAND
from .scripted_server import ScriptedServer

Child = Callable[..., subprocess.CompletedProcess[bytes]]


def test_the_installed_command_answers(to_server: dict[str, str]):
    prime = Path(sysconfig.get_path("scripts")) / "prime"
    done = subprocess.run(
        [prime, "inference", "chat", "plain", "hi", "--stream"], capture_output=True,
        env=to_server, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "Hello, wörld.\n", b"")


def test_a_failure_reaches_the_shell(child: Child):
    done = child("inference", "chat", "in-band-error", "hi", "--stream")
    assert (done.returncode, done.stdout) == (1, b"Half an \n")
    assert done.stderr == b"Error: The deployment went away.\n"


def test_json_out_and_json_errors(child: Child):
    good = child("inference", "chat", "plain", "-o", "json", stdin=b"from a pipe")
    assert (good.returncode, good.stderr) == (0, b"")
    json.loads(good.stdout)
    bad = child("inference", "chat", "unauthorized", "hi", "-o", "json")
    assert (bad.returncode, bad.stdout) == (1, b"")
    assert json.loads(bad.stderr)["error"]["status"] == 401


def test_text_that_the_terminals_encoding_lacks_is_no_error(child: Child):
    done = child("inference", "chat", "plain", "hi", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, b"Hello, w?rld.\n")


def test_text_appears_as_it_comes_and_ctrl_c_ends_quietly(
    to_server: dict[str, str], server: ScriptedServer
):
    command = [*COMMAND, "inference", "chat", "endless", "hi", "--stream"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=to_server
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 7) == b"and on "
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stdout.read().replace(b"and on ", b"") in (b"", b"\n")
        assert process.stderr.read() == b""
    assert server.client_left.wait(10)


def test_a_reader_that_goes_away_ends_it_quietly(to_server: dict[str, str], server: ScriptedServer):
    command = [*COMMAND, "inference", "chat", "endless", "hi", "--stream"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=to_server
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert os.read(process.stdout.fileno(), 7) == b"and on "
        process.stdout.close()
        assert process.wait(10) == 1
        assert process.stderr.read() == b""
    assert server.client_left.wait(10)
