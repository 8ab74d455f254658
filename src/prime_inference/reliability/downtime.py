"""Who waits in vain on a deployment that was found down (docs/reliability.md, "Found down")."""

from __future__ import annotations

from collections.abc import Iterable

SILENT_S = 5.0
"""Without a token, on a deployment that is down: the next look, 5 s later, would have found it
well again, and the slowest models write two tokens a second."""


class Downtime:
    """Since when deployments are down, for one who looks often. Pure: time is passed in.

    It knows no more than the last look, so a verdict that is reversed leaves nothing behind.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def look(self, down: Iterable[str], now: float) -> None:
        """These are down now, and no others."""
        self._since = {name: self._since.get(name, now) for name in down}

    def __bool__(self) -> bool:
        return bool(self._since)

    def __contains__(self, deployment: str) -> bool:
        return deployment in self._since

    def in_vain(self, deployment: str, silence: float | None, now: float) -> bool:
        """Whether an attempt there may be ended for one elsewhere.

        `silence` is how long it has brought nothing; None if it never has. An answer whose
        tokens come is left alone: slow is not dead.
        """
        since = self._since.get(deployment)
        if since is None:
            return False
        return silence is None or min(silence, now - since) >= SILENT_S
