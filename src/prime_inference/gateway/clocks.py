"""Time limits of one attempt: connect, first token, idle and total, each on its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prime_inference.domain.errors import SlotRecalled, UpstreamFailure, UpstreamTimeout
from prime_inference.wire.http_client import Response

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClockLimits:
    """Seconds."""

    connect: float = 5.0  # a SYN is retried after 1 and 3 s; a third try does not help
    first_token: float = 120.0  # a cold prefill of 140K tokens takes tens of seconds
    idle: float = 60.0  # between two events of a stream
    tail: float = 2.0  # after the finish reason, for usage and `[DONE]`
    whole: float = 600.0  # an answer that is not streamed: OpenAI's SDK gives up then
    total: float = 3600.0  # the longest answer: 128K tokens at 36 tokens/s


MESSAGES = {
    "first_token": "The model did not begin its answer in time.",
    "idle": "The model stopped in mid-answer.",
    "tail": "The model's answer was not closed.",
    "total": "The model's answer took too long.",
}


class Watched(Protocol):
    """What `Deadlines` looks at."""

    at: float  # event loop time

    def callback(self) -> None:
        """Called once, some time after `at`."""
        ...


class Deadlines:
    """Calls watchdogs back when they are due, by looking at all of them every `TICK_SECONDS`.

    A timer of the event loop for each clock of each request costs more than the looking:
    a thousand streams are looked over in under 0.1 ms, and most clocks never run out.
    """

    TICK_SECONDS = 0.1  # the precision of every clock; the shortest one is 2 s
    STOOD_STILL_SECONDS = 1.0  # a busy event loop is late by less

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: set[Watched] = set()
        self._ticking = False
        self._due = 0.0  # when the next tick should be

    def now(self) -> float:
        """The event loop's clock."""
        return self._loop.time()

    def add(self, watched: Watched) -> None:
        self._watched.add(watched)
        if not self._ticking:
            self._ticking = True
            self._tick_later()

    def discard(self, watched: Watched) -> None:
        self._watched.discard(watched)

    def _tick(self) -> None:
        now = self._loop.time()
        if now - self._due > self.STOOD_STILL_SECONDS:
            self._stood_still(now - self._due)
        for watched in [watched for watched in self._watched if watched.at <= now]:
            if watched not in self._watched:  # one called before has cancelled it
                continue
            self._watched.discard(watched)
            try:
                watched.callback()
            except Exception:  # or every clock of the process would stand still from now on
                log.exception("the callback of a clock failed")
        self._ticking = bool(self._watched)
        if self._ticking:
            self._tick_later()

    def _tick_later(self) -> None:
        self._due = self._loop.time() + self.TICK_SECONDS
        self._loop.call_at(self._due, self._tick)

    def _stood_still(self, seconds: float) -> None:
        """This process was stopped: what came meanwhile is read next, and nobody was late."""
        log.warning("this process stood still for %.1f s", seconds)
        for watched in self._watched:
            watched.at += seconds


class Watchdog:
    """Calls back once, when `seconds` have passed since the last `touch` or `restart`."""

    __slots__ = ("_callback", "_deadlines", "_seconds", "at")

    def __init__(self, deadlines: Deadlines, seconds: float, callback: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._callback = callback
        self.restart(seconds)

    def callback(self) -> None:
        self._callback()

    def touch(self) -> None:
        self.at = self._deadlines.now() + self._seconds

    def restart(self, seconds: float) -> None:
        """Start over with another limit, after it has called back too."""
        self._seconds = seconds
        self.touch()
        self._deadlines.add(self)

    def cancel(self) -> None:
        """Never call back again, and let go of whom that would be."""
        self._deadlines.discard(self)
        self._callback = _nobody


def _nobody() -> None:
    pass


class AttemptClocks:
    """Ends an exchange with `UpstreamTimeout` when one of its clocks is out.

    Two run at a time: the total, and one of first token, idle and tail in turn. `Deadlines`
    looks at `at`, the earlier of their ends.
    """

    __slots__ = ("_deadlines", "_expired", "_late", "_limits", "_name", "_response", "_total_at",
                 "at", "started")  # fmt: skip

    def __init__(
        self,
        deadlines: Deadlines,
        limits: ClockLimits,
        *,
        streamed: bool,
        since: float | None = None,  # when the total began, if not now
        late: tuple[float, Callable[[], None]] | None = None,  # whom to call if nothing came
    ) -> None:
        self._deadlines = deadlines
        self._limits = limits
        self._response: Response | None = None
        self._expired: UpstreamFailure | None = None
        longest = limits.total if streamed else min(limits.whole, limits.total)
        self.started = deadlines.now()
        self._total_at = self.at = (self.started if since is None else since) + longest
        self._name = "total"
        self._late: Callable[[], None] | None = None
        if streamed:
            self._run("first_token", limits.first_token)
        if late is not None and self.started + late[0] < self.at:
            self._late = late[1]
            self.at = self.started + late[0]
        deadlines.add(self)

    def watch(self, response: Response) -> None:
        """The exchange to end: at once, if a clock ran out while there was none to end."""
        self._response = response
        if self._expired is not None:
            response.fail(self._expired)

    def progress(self) -> None:
        """Content arrived: the idle clock runs from now."""
        self._run("idle", self._limits.idle)

    def finished(self) -> None:
        """The last finish reason arrived: only the tail may still come."""
        if self._name != "tail":
            self._run("tail", self._limits.tail)

    def hold(self) -> None:
        """The client is behind: while nothing is read, the upstream cannot be late."""
        self._late = None
        self.at = self._total_at

    def resume(self) -> None:
        """The client has caught up: the running clock starts over."""
        self._run(self._name, getattr(self._limits, self._name))

    @property
    def waits(self) -> bool:
        """Whether there is an exchange that could be ended now: nothing has come of it unread."""
        return self._response is not None and not self._response.has_news

    def silence(self, now: float) -> float | None:
        """Seconds since content came; None before the first. None is missed of a held stream."""
        if self._name in ("first_token", "total"):
            return None
        if self._name != "idle" or self.at >= self._total_at:
            return 0.0
        return now - (self.at - self._limits.idle)

    def end(self, failure: UpstreamFailure) -> None:
        """Not by a clock: end the exchange with `failure`."""
        self._expired = failure
        if self._response is not None:
            self._response.fail(failure)

    def recalled(self) -> None:
        """The slot that the attempt runs on goes back to whom it was lent by."""
        self.end(SlotRecalled("The model is at capacity. Try again shortly.", retry_after=1))

    def stop(self) -> None:
        self._deadlines.discard(self)
        self._response = self._expired = self._late = None

    def callback(self) -> None:
        """Called by `Deadlines` when `at` has passed."""
        if self._late is not None:
            self._call_late(self._late)
            return
        name = "total" if self.at >= self._total_at else self._name
        self._expired = UpstreamTimeout(MESSAGES[name], clock=name)
        if self._response is not None:
            self._response.fail(self._expired)

    def _call_late(self, late: Callable[[], None]) -> None:
        self._late = None
        self.at = self._total_at
        if self._name == "first_token":
            self.at = min(self.started + self._limits.first_token, self._total_at)
        self._deadlines.add(self)
        late()

    def _run(self, name: str, seconds: float) -> None:
        self._late = None
        self._name = name
        self.at = min(self._deadlines.now() + seconds, self._total_at)
