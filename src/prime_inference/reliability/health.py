"""What active checks say of a deployment: a state machine without I/O.

It is careful with silence: an engine that reads a prompt of 100,000 tokens may answer no
question for seconds and is as healthy as ever. What it says of itself counts sooner.
"""

from __future__ import annotations

import enum

TELLING = 2  # in a row; one may have met a restart of what stands in front of the engine
SILENT = 3  # in a row, and no answer to any request meanwhile


class Readiness(enum.Enum):
    """What came of one look at a deployment."""

    READY = "ready"
    NOT_READY = "not ready"  # it says so itself: loading, draining, without workers
    UNREACHABLE = "unreachable"  # no connection, or it broke
    SILENT = "silent"  # no answer in time


class Health:
    """Healthy until proved otherwise; then until one look finds it ready."""

    __slots__ = ("_answered", "_silent", "_telling", "healthy")

    def __init__(self) -> None:
        self.healthy = True
        self._telling = 0
        self._silent = 0
        self._answered = 0

    def looked(self, readiness: Readiness, answered: int) -> bool:
        """Note a look; returns whether `healthy` has changed.

        `answered` counts the requests that the deployment has answered so far.
        """
        alive = answered > self._answered
        self._answered = answered
        before = self.healthy
        if readiness is Readiness.READY:
            self.healthy = True
            self._telling = self._silent = 0
        elif readiness is Readiness.SILENT:
            self._silent = 0 if alive else self._silent + 1
        else:
            self._telling += 1
        if self._telling >= TELLING or self._silent >= SILENT:
            self.healthy = False
        return self.healthy is not before
