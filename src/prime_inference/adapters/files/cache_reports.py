"""The newest cache reports that a fleet's launcher wrote (`fleet.caches` has their format)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import FRESH_SECONDS, CacheReports, asks_file, parse_reports

STALE_SECONDS = 30.0  # six times as old as they should be: whoever writes them is gone
WAIT_SECONDS = 3.0  # the launcher gives a frozen worker 2 s
LOOK_SECONDS = 0.02


class CacheReportsFile:
    """Read when somebody looks. What is missing, broken or old tells nothing."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path = path
        self._asks = asks_file(path)
        self._now = now
        self._in_vain: float | None = None  # what was there when nobody answered

    async def refresh(self) -> None:
        """Ask for new reports if they are old; return when they are there, or nobody writes any.

        One who does not answer is waited for once.
        """
        if self._age() < FRESH_SECONDS:
            return
        try:
            os.utime(self._asks)
        except OSError:  # nobody answers: a list that was written by hand, or a ConfigMap
            return
        before = self._read().taken_at
        until = time.monotonic() + (WAIT_SECONDS if self._in_vain != before else 0.0)
        while self._age() >= FRESH_SECONDS:
            if time.monotonic() >= until:
                self._in_vain = before
                return
            await asyncio.sleep(LOOK_SECONDS)

    def latest(self) -> Mapping[str, CacheReport]:
        """By deployment."""
        found = self._read()
        return found.reports if self._age_of(found) < STALE_SECONDS else {}

    def _age(self) -> float:
        return self._age_of(self._read())

    def _age_of(self, found: CacheReports) -> float:
        return abs(self._now() - found.taken_at)

    def _read(self) -> CacheReports:
        try:
            return parse_reports(self._path.read_bytes())
        except (OSError, RecursionError, msgspec.DecodeError):
            return NONE


NONE = CacheReports(float("-inf"), {})
