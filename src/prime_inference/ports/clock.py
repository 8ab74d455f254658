"""Time that never steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

Clock = Callable[[], float]
"""Seconds since some moment; grows steadily and is unaffected by setting the wall clock."""


def steady_clock() -> Clock:
    """The machine's clock for leases: on Linux it also counts time spent suspended."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return time.monotonic
    return partial(time.clock_gettime, boottime)
