"""Logs of a fleet's processes stay within bounds, while they are written to."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from prime_inference.fleet.launcher.exits import last_words
from prime_inference.fleet.launcher.logs import keep_few, turn_over
from prime_inference.fleet.launcher.processes import reap, start


def test_a_long_log_begins_anew_and_its_end_is_kept(tmp_path: Path) -> None:
    long, short = tmp_path / "a.worker-0.log", tmp_path / "a.worker-1.log"
    long.write_bytes(b"x" * 51 + b"y" * 50)
    short.write_bytes(b"y" * 100)
    turn_over(tmp_path, most=100)
    assert long.read_bytes() == b""
    assert (tmp_path / "a.worker-0.log.1").read_bytes() == b"y" * 50
    assert short.read_bytes() == b"y" * 100


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What is longer cannot be written, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_a_log_begins_anew_where_there_is_no_room_for_what_it_held(tmp_path: Path) -> None:
    log, kept = tmp_path / "a.worker-0.log", tmp_path / "a.worker-0.log.1"
    log.write_bytes(b"x" * 101)
    kept.write_bytes(b"what it held before takes room")
    with files_of_at_most(20):
        turn_over(tmp_path, most=100)
    assert log.read_bytes() == b""
    assert not kept.exists()  # no part of it, which would be in the way for ever


def test_of_deployments_that_are_gone_the_last_logs_are_kept(tmp_path: Path) -> None:
    names = ["a.decode-0.log", "b.decode-0.log", "b.decode-0.log.1", "gateway.gateway.log"]
    names += ["c.decode-0.log", "supervisor.log"]
    for moment, name in enumerate(names):
        (tmp_path / name).write_bytes(b"x" * 100_000)
        os.utime(tmp_path / name, (moment, moment))
    keep_few(tmp_path, {"a", "gateway"}, most=200_000)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {*names} - {"b.decode-0.log"}


def test_a_process_writes_on_at_the_beginning_of_its_emptied_log(tmp_path: Path) -> None:
    log = tmp_path / "a.worker-0.log"
    log.write_bytes(b"x" * 100)
    began = log.stat().st_size
    turn_over(tmp_path, most=10)
    pid = start([sys.executable, "-c", "print('done')"], {}, log, fleet="f", name="a/worker-0")
    while reap(pid) is None:
        pass
    assert log.read_bytes() == b"done\n"
    assert last_words(log, since=began) == ("done",)
