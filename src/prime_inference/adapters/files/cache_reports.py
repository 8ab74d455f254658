"""The newest cache reports that a fleet's launcher wrote (`fleet.caches` has their format)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import parse_reports

STALE_SECONDS = 30.0  # six times what lies between two reports: whoever writes them is gone


class CacheReportsFile:
    """Read when somebody looks. What is missing, broken or old tells nothing."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        self._path = path
        self._now = now

    def latest(self) -> Mapping[str, CacheReport]:
        """By deployment."""
        try:
            found = parse_reports(self._path.read_bytes())
        except (OSError, msgspec.DecodeError):
            return {}
        fresh = abs(self._now() - found.taken_at) < STALE_SECONDS
        return found.reports if fresh else {}
