"""Logs of a fleet's processes stay within bounds, while they are written to."""

from __future__ import annotations

import sys
from pathlib import Path

from prime_inference.fleet.launcher.exits import last_words
from prime_inference.fleet.launcher.logs import turn_over
from prime_inference.fleet.launcher.processes import reap, start


def test_a_long_log_begins_anew_and_what_it_held_is_kept(tmp_path: Path) -> None:
    long, short = tmp_path / "a.worker-0.log", tmp_path / "a.worker-1.log"
    long.write_bytes(b"x" * 101)
    short.write_bytes(b"y" * 100)
    turn_over(tmp_path, most=100)
    assert long.read_bytes() == b""
    assert (tmp_path / "a.worker-0.log.1").read_bytes() == b"x" * 101
    assert short.read_bytes() == b"y" * 100


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
