"""Requests that wait on a deployment that was found down are freed, and go elsewhere.

A request leaves only when its place elsewhere is taken already: what nobody else can take
goes on waiting. All of this happens between two steps of the event loop, so a first token is
either here already, and the request stays, or it comes too late.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from prime_inference.domain.errors import UpstreamDown
from prime_inference.gateway import continuation
from prime_inference.gateway.clocks import AttemptClocks, Deadlines
from prime_inference.gateway.hedging import Hedge
from prime_inference.gateway.relay import StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.tries import Place, Tries
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.downtime import in_vain
from prime_inference.reliability.guard import Guard

T = TypeVar("T")

LOOK_SECONDS = 0.25  # verdicts take seconds; looking costs microseconds while nobody is down

log = logging.getLogger(__name__)


class Stay(Generic[T]):
    """One attempt of a request that others could serve too, for as long as it lasts."""

    __slots__ = ("clocks", "hedge", "refuge", "relay", "run", "tries", "upstream")

    def __init__(
        self, run: Run, upstream: Upstream, tries: Tries | None, hedge: Hedge[T] | None
    ) -> None:
        self.run = run
        self.upstream = upstream
        self.tries = tries
        self.hedge = hedge
        self.clocks: AttemptClocks | None = None  # this and the next are set by the attempt
        self.relay: StreamRelay | None = None  # of a stream
        self.refuge: Place | None = None  # where it goes on

    def may_end(self) -> bool:
        """Whether the attempt waits at this moment for an answer that another could give."""
        if self.clocks is None or not self.clocks.waits:
            return False
        relay = self.relay
        if relay is None or not relay.committed:
            return True
        return continuation.obstacle(self.run.operation, relay.said) is None

    def is_in_vain(self, down: Mapping[str, float], now: float) -> bool:
        """Whether it waits in vain; `down` are deployments that are, and since when."""
        since, clocks = down.get(self.upstream.deployment.id), self.clocks
        if since is None or clocks is None:
            return False
        if not in_vain(since, clocks.started, clocks.silence(now), now):
            return False
        beside = None if self.hedge is None else self.hedge.beside
        return beside is None or beside in down  # else a second attempt is on its way

    def take_refuge(self) -> Place | None:
        """The place elsewhere, which is the caller's now."""
        refuge, self.refuge = self.refuge, None
        return refuge


class Evacuation:
    """Looks after all stays; `refuge` finds a place for one, and the right to go there."""

    def __init__(
        self, guard: Guard, deadlines: Deadlines, refuge: Callable[[Stay[Any]], Place | None]
    ) -> None:
        self.at = 0.0  # watched by `Deadlines` while anybody stays anywhere
        self._guard = guard
        self._deadlines = deadlines
        self._refuge = refuge
        self._stays: set[Stay[Any]] = set()
        self._watched = False

    def begin(self, stay: Stay[T]) -> Stay[T]:
        self._stays.add(stay)
        if not self._watched:
            self._watch()
        return stay

    def end(self, stay: Stay[Any]) -> None:
        """The attempt is over, in whatever way."""
        self._stays.discard(stay)
        unused = stay.take_refuge()
        if unused is not None:
            unused[1].release()

    def callback(self) -> None:
        """Called by `Deadlines`."""
        self._watched = False
        try:
            self.look()
        finally:
            if self._stays:
                self._watch()

    def look(self) -> None:
        """Free whoever waits in vain, those that have waited longest first."""
        down = self._guard.down_deployments()
        if not down:
            return
        now = self._deadlines.now()  # of another clock than the guard's
        down = {name: now - seconds for name, seconds in down.items()}
        freed: Counter[str] = Counter()
        for stay in sorted(self._stays, key=lambda stay: stay.run.started):
            if stay.is_in_vain(down, now) and self._free(stay):
                freed[stay.upstream.deployment.id] += 1
        for name, count in freed.items():
            self._guard.decisions.moves[name] += count
            log.warning("%d requests leave deployment %s, which is down", count, name)

    def _watch(self) -> None:
        self._watched = True
        self.at = self._deadlines.now() + LOOK_SECONDS
        self._deadlines.add(self)

    def _free(self, stay: Stay[Any]) -> bool:
        if not stay.may_end():
            return False
        stay.refuge = self._refuge(stay)
        if stay.refuge is None:
            return False
        self._stays.discard(stay)
        assert stay.clocks is not None
        stay.clocks.end(UpstreamDown("The model's engine went down before it had answered."))
        return True
