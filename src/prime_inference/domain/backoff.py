"""How long to wait before a process that died is started again."""

from __future__ import annotations

PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""A single crash costs little more than loading (about 1 s for the default model); a crash loop
loads at most twice a minute, and who repairs its cause waits half a minute for the effect."""

HEALTHY_SECONDS = 60.0
"""A run longer than the longest pause is no part of a crash loop."""


class Backoff:
    """Pauses that grow while runs are short."""

    def __init__(self) -> None:
        self.short_runs = 0  # in a row

    def pause(self, ran_seconds: float) -> float:
        """Seconds to wait after a run that lasted so long; 0 stands for one that never began."""
        if ran_seconds >= HEALTHY_SECONDS:
            self.short_runs = 0
        pause = PAUSES_SECONDS[min(self.short_runs, len(PAUSES_SECONDS) - 1)]
        self.short_runs += 1
        return pause
