"""What active checks say of a deployment: a state machine without I/O.

Unhealthy: no new request goes there. Down: those who wait there wait in vain. An engine that
drains says that it is not ready and goes on answering; it is unhealthy, and not down.

It is careful with silence: an engine that reads a prompt of 100,000 tokens may answer no
question for seconds and is as healthy as ever. What it says of itself counts sooner.
"""

from __future__ import annotations

import enum

TELLING = 2  # in a row; one may have met a restart of what stands in front of the engine
SILENT = 3  # in a row, and no sign of life meanwhile


class Readiness(enum.Enum):
    """What came of one look at a deployment."""

    READY = "ready"
    NOT_READY = "not ready"  # it says so itself: loading, draining, without workers
    UNREACHABLE = "unreachable"  # no connection, or it broke
    SILENT = "silent"  # no answer in time
    REFUSING = "refusing"  # it is ready, and takes no requests of ours: credentials, path, name


class Health:
    """Healthy until proved otherwise; then until one look finds it ready."""

    __slots__ = ("_signs", "_silent", "_telling", "down", "healthy")

    def __init__(self) -> None:
        self.healthy = True
        self.down = False
        self._telling = 0
        self._silent = 0
        self._signs = 0

    def looked(self, readiness: Readiness, signs_of_life: int) -> bool:
        """Note a look; returns whether `healthy` has changed.

        `signs_of_life` counts the first tokens and answers that have come from it so far.
        """
        alive = signs_of_life > self._signs
        self._signs = signs_of_life
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
        self.down = not self.healthy and not alive
        return self.healthy is not before
