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


class Deadlines:
    """Calls watchdogs back when they are due, by looking at all of them every `TICK_SECONDS`.

    A timer of the event loop for each clock of each request costs more than the looking:
    a thousand streams are looked over in under 0.1 ms, and most clocks never run out.
    """

    TICK_SECONDS = 0.1  # the precision of every clock; the shortest one is 2 s

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watchdogs: set[Watchdog] = set()
        self._ticking = False

    def now(self) -> float:
        """The event loop's clock."""
        return self._loop.time()

    def add(self, watchdog: Watchdog) -> None:
        self._watchdogs.add(watchdog)
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(self.TICK_SECONDS, self._tick)

    def discard(self, watchdog: Watchdog) -> None:
        self._watchdogs.discard(watchdog)

    def _tick(self) -> None:
        now = self._loop.time()
        for watchdog in [watchdog for watchdog in self._watchdogs if watchdog.at <= now]:
            self._watchdogs.discard(watchdog)
            watchdog.callback()
        self._ticking = bool(self._watchdogs)
        if self._ticking:
            self._loop.call_later(self.TICK_SECONDS, self._tick)


class Watchdog:
    """Calls back once, when `seconds` have passed since the last `touch` or `restart`."""

    __slots__ = ("_deadlines", "_seconds", "at", "callback")

    def __init__(self, deadlines: Deadlines, seconds: float, callback: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self.callback = callback
        self.restart(seconds)

    def touch(self) -> None:
        self.at = self._deadlines.now() + self._seconds

    def restart(self, seconds: float) -> None:
        """Start over with another limit, after it has called back too."""
        self._seconds = seconds
        self.touch()
        self._deadlines.add(self)

    def cancel(self) -> None:
        self._deadlines.discard(self)


class AttemptClocks:
    """Ends an exchange with `UpstreamTimeout` when one of its clocks is out."""

    __slots__ = ("_limits", "_name", "_response", "_total", "_turn")

    def __init__(self, deadlines: Deadlines, limits: ClockLimits, *, streamed: bool) -> None:
        self._limits = limits
        self._name = "first_token" if streamed else "total"
        self._response: Response | None = None
        self._total = Watchdog(deadlines, limits.total, lambda: self._expire("total"))
        self._turn: Watchdog | None = None  # first token, then idle, then tail
        if streamed:
            self._turn = Watchdog(deadlines, limits.first_token, lambda: self._expire(self._name))

    def watch(self, response: Response) -> None:
        """The exchange to end."""
        self._response = response

    def progress(self) -> None:
        """Content arrived: the idle clock runs from now."""
        if self._name == "idle":
            assert self._turn is not None
            self._turn.touch()
        else:  # a finish reason that more content follows was not the last
            self._run("idle", self._limits.idle)

    def finished(self) -> None:
        """The last finish reason arrived: only the tail may still come."""
        if self._name != "tail":
            self._run("tail", self._limits.tail)

    def hold(self) -> None:
        """The client is behind: while nothing is read, the upstream cannot be late."""
        if self._turn is not None:
            self._turn.cancel()

    def resume(self) -> None:
        """The client has caught up: the running clock starts over."""
        self._run(self._name, getattr(self._limits, self._name))

    def stop(self) -> None:
        self.hold()
        self._total.cancel()
        self._response = None

    def _run(self, name: str, seconds: float) -> None:
        self._name = name
        if self._turn is not None:
            self._turn.restart(seconds)

    def _expire(self, name: str) -> None:
        if self._response is not None:
            self._response.fail(UpstreamTimeout(MESSAGES[name], clock=name))
