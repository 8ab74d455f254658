"""Time limits of one attempt: connect, first token, idle and total, each on its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prime_inference.domain.errors import UpstreamTimeout
from prime_inference.wire.http_client import Response


@dataclass(frozen=True, slots=True)
class ClockLimits:
    """Seconds."""

    connect: float = 5.0  # a SYN is retried after 1 and 3 s; a third try does not help
    first_token: float = 120.0  # a cold prefill of 140K tokens takes tens of seconds
    idle: float = 60.0  # between two events of a stream
    tail: float = 2.0  # after the finish reason, for usage and `[DONE]`
    total: float = 3600.0  # the longest answer: 128K tokens at 36 tokens/s


MESSAGES = {
    "first_token": "The model did not begin its answer in time.",
    "idle": "The model stopped in mid-answer.",
    "tail": "The model's answer was not closed.",
    "total": "The model's answer took too long.",
}


class Watchdog:
    """Calls back once, when `seconds` have passed since the last `touch`.

    A touch writes one number; the timer behind it is armed anew only when it fires early.
    """

    __slots__ = ("_at", "_callback", "_handle", "_loop", "_seconds")

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._callback = callback
        self._at = self._loop.time() + seconds
        self._handle: asyncio.TimerHandle | None = self._loop.call_at(self._at, self._fire)

    def touch(self) -> None:
        self._at = self._loop.time() + self._seconds

    def restart(self, seconds: float | None = None) -> None:
        """Start over, after it has called back too, with a new limit if one is given."""
        self.cancel()
        self._seconds = self._seconds if seconds is None else seconds
        self.touch()
        self._handle = self._loop.call_at(self._at, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        if self._loop.time() < self._at:
            self._handle = self._loop.call_at(self._at, self._fire)
            return
        self._handle = None
        self._callback()


class AttemptClocks:
    """Ends an exchange with `UpstreamTimeout` when its running clock is out."""

    __slots__ = ("_limits", "_loop", "_name", "_response", "_started", "_watchdog")

    def __init__(self, limits: ClockLimits, *, streamed: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._started = self._loop.time()
        self._name = "first_token" if streamed else "total"
        seconds = limits.first_token if streamed else limits.total
        self._watchdog = Watchdog(min(seconds, limits.total), self._expire)
        self._response: Response | None = None

    def watch(self, response: Response) -> None:
        """The exchange to end."""
        self._response = response

    def progress(self) -> None:
        """An event arrived: the idle clock runs from now."""
        if self._name == "idle":
            self._watchdog.touch()
        elif self._name == "first_token":
            self._run("idle", self._limits.idle)

    def finished(self) -> None:
        """The finish reason arrived: only the tail may still come."""
        if self._name != "tail":
            self._run("tail", self._limits.tail)

    def stop(self) -> None:
        self._watchdog.cancel()
        self._response = None

    def _run(self, name: str, seconds: float) -> None:
        self._name = name
        self._watchdog.restart(seconds)

    def _expire(self) -> None:
        if self._response is not None:
            self._response.fail(UpstreamTimeout(MESSAGES[self._name], clock=self._name))
