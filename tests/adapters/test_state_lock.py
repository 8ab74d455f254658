"""One server for each state folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_inference.adapters.files.key_store import StateFolderError
from prime_inference.adapters.files.state_lock import holding

HOLDER = """
import sys
from pathlib import Path
from prime_inference.adapters.files.state_lock import holding

with holding(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_server_is_told_who_holds_the_folder_and_what_to_do(tmp_path: Path):
    folder = tmp_path / "state"
    with holding(folder), pytest.raises(StateFolderError) as refused, holding(folder):
        pytest.fail("two servers hold one folder")
    assert f"process {os.getpid()}" in str(refused.value)
    assert str(folder) in str(refused.value)
    assert "--state-dir" in str(refused.value)


def test_a_folder_is_free_again_after_its_server(tmp_path: Path):
    for _ in range(2):
        with holding(tmp_path):
            pass


def test_a_server_that_was_killed_blocks_nobody(tmp_path: Path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StateFolderError, match=f"process {holder.pid}"), holding(tmp_path):
            pytest.fail("two servers hold one folder")
        holder.kill()
    assert (tmp_path / "lock").read_text() == f"{holder.pid}\n"
    with holding(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_process_that_the_server_starts_does_not_hold_the_folder_for_it(tmp_path: Path):
    with holding(tmp_path):
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print('runs', flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            close_fds=False,
        )
        assert child.stdout is not None
        # the kernel closes what exec does not pass on some time after `Popen` returns
        assert child.stdout.readline() == b"runs\n"
    with child, holding(tmp_path):
        assert child.poll() is None
        assert child.stdin is not None
        child.stdin.close()


def test_a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateFolderError, match="--state-dir"), holding(tmp_path / "file" / "state"):
        pytest.fail("it cannot be held")
