import os
import sys
import time
from pathlib import Path

import pytest

from prime_inference.bench.gateway.machine import _cpu_model, choose_cores, pinned
from prime_inference.bench.gateway.process import Child, StartFailed, core_seconds

CORE = choose_cores().subject
PARENT = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'x = bytearray(64 << 20); input()'],"
    " stdin=subprocess.PIPE)\n"
    "print('ready', flush=True)\n"
    "time.sleep(60)\n"
)
SPIN = "print('ready', flush=True)\nwhile True: pass\n"


def start(tmp_path: Path, code: str) -> Child:
    return Child([sys.executable, "-c", code], core=CORE, log=tmp_path / "log")


def test_memory_counts_descendants(tmp_path: Path):
    child = start(tmp_path, PARENT)
    try:
        child.wait_until(lambda: "ready" in child.output)
        child.wait_until(lambda: child.memory_mib() > 64, seconds=20)
    finally:
        child.stop()
    assert child.memory_mib() == 0


def test_a_paused_process_uses_no_cpu_and_can_be_stopped(tmp_path: Path):
    child = start(tmp_path, SPIN)
    try:
        child.wait_until(lambda: child.cpu_seconds() > 0.05, seconds=20)
        child.pause()
        time.sleep(0.05)
        used = child.cpu_seconds()
        time.sleep(0.2)
        assert child.cpu_seconds() == used
        child.resume()
        child.wait_until(lambda: child.cpu_seconds() > used, seconds=20)
        child.pause()
    finally:
        child.stop()
    assert child.cpu_seconds() == 0


def test_the_time_of_a_core_covers_what_runs_on_it(tmp_path: Path):
    before = core_seconds(CORE)
    child = start(tmp_path, SPIN)
    try:
        child.wait_until(lambda: child.cpu_seconds() > 0.1, seconds=20)
        assert core_seconds(CORE) - before >= 0.09
    finally:
        child.stop()


def test_a_process_that_ends_too_soon_leaves_its_last_words(tmp_path: Path):
    child = start(tmp_path, "raise SystemExit('no licence')")
    with pytest.raises(StartFailed, match="status 1: no licence"):
        child.wait_until(lambda: False)


def test_a_process_that_is_never_ready_is_given_up(tmp_path: Path):
    child = start(tmp_path, "import time; time.sleep(60)")
    try:
        with pytest.raises(StartFailed, match="not ready"):
            child.wait_until(lambda: False, seconds=0.2)
    finally:
        child.stop()


def test_children_are_pinned_and_the_parent_is_not(tmp_path: Path):
    before = os.sched_getaffinity(0)
    code = "import os, time; print(*os.sched_getaffinity(0), flush=True); time.sleep(60)"
    child = start(tmp_path, code)
    try:
        child.wait_until(lambda: "\n" in child.output)
    finally:
        child.stop()
    assert child.output.split() == [str(CORE)]
    assert os.sched_getaffinity(0) == before


def test_pinning_is_undone_when_the_start_fails():
    before = os.sched_getaffinity(0)
    with pytest.raises(FileNotFoundError), pinned(CORE):
        raise FileNotFoundError
    assert os.sched_getaffinity(0) == before


def test_the_model_of_the_cpu_is_read():
    assert _cpu_model("processor\t: 0\nmodel name\t: AMD EPYC 9654\n") == "AMD EPYC 9654"
