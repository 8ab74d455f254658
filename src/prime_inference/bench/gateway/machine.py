"""The machine a measurement was made on, and pinning processes to its cores."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """What a reader needs to judge the numbers; `load_average` is of the minute before."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str  # version and build: with PGO and LTO a gateway is about 15 % faster
    load_average: float


def describe() -> Machine:
    """This machine, now."""
    return Machine(
        cpu=_cpu_model(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=platform.release(),
        python=" ".join(sys.version.split()),
        load_average=round(os.getloadavg()[0], 2),
    )


def _cpu_model(cpuinfo: str) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.M)
    return match[1] if match else platform.machine()


class Cores(msgspec.Struct, frozen=True):
    """Which core carries what; the same one twice on a machine with a single core."""

    subject: int
    load: int

    @property
    def shared(self) -> bool:
        return self.subject == self.load


def choose_cores() -> Cores:
    """The first core for the thing under test, the second for everything around it."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[0], allowed[1] if len(allowed) > 1 else allowed[0])


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Processes started inside run on this core only, with all threads they will have."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
