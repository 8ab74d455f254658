"""What one request has tried, round after round, and what comes next.

Which deployment comes first, whether it has a slot and whether another try may be made is
the guard's word (docs/reliability.md). In one round every deployment is tried once; only
when all have failed does another round begin, after a pause.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

from prime_inference.domain.errors import (
    CapacityExhausted,
    ContextTooSmall,
    FlexUnavailable,
    ModelDrained,
    NoConnection,
    SlotRecalled,
    ToolCallBroken,
    UpstreamFailure,
    UpstreamTimeout,
)
from prime_inference.gateway import reserved
from prime_inference.gateway.continuation import same_revision
from prime_inference.gateway.run import Run
from prime_inference.gateway.upstream_errors import refuses_us
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.runner import wait_for_slot
from prime_inference.reliability.slots import Reason, Refusal, Slot
from prime_inference.routing.tool_calls import ToolCallRanking

MOST_TRIES = 4  # attempts that an upstream answered or broke; Google's SRE book allows 3
PAUSES = (0.25, 1.0)  # seconds before the second and third round
LONGEST_PAUSE = 5.0  # seconds in all; an upstream that asks for more is passed on to the client

Place = tuple[Upstream, Slot]


class Tries:
    """What has been tried for one request, and what comes next."""

    def __init__(
        self, guard: Guard, upstreams: Upstreams, ranking: ToolCallRanking, run: Run
    ) -> None:
        self._guard = guard
        self._ranking = ranking
        self._upstreams = upstreams
        self._run = run
        self._count = 0
        self._unseen = False  # the last try loaded nobody
        self._moved = False  # left an ejected deployment, which is free once
        self._last = ""  # the deployment that failed last
        self._seen: set[str] = set()  # in this round
        self._full: set[str] = set()  # of those, they had no slot
        self._unreached: set[str] = set()  # of those, they could not be reached
        self._failures: list[UpstreamFailure] = []  # of this round
        self._earlier: list[UpstreamFailure] = []  # of the round before
        self._pauses: Iterator[float] = iter(PAUSES)
        self._pieces = 0  # attempts that had brought content by the last failure
        self._cut: UpstreamFailure | None = None  # what broke the answer off
        self._paused = 0.0  # seconds

    def refused(self, upstream: Upstream, refusal: Refusal) -> None:
        """It had no slot."""
        self._seen.add(upstream.deployment.id)
        self._full.add(upstream.deployment.id)
        self._failures.append(refusal.error(self._run.model))

    def left(self, upstream: Upstream) -> None:
        """It was slower than another."""
        self._seen.add(upstream.deployment.id)

    def failed(self, upstream: Upstream, failure: UpstreamFailure) -> None:
        """An attempt on it did not succeed."""
        failure.dealt_with()
        self._last = upstream.deployment.id
        self._seen.add(self._last)
        self._failures.append(failure)
        unreached = isinstance(failure, NoConnection)
        self._unseen = unreached or refuses_us(failure.upstream_status)
        if isinstance(failure, SlotRecalled):  # no fault of the deployment's, which may have others
            self._full.add(self._last)
        elif unreached:
            self._unreached.add(self._last)
        else:
            self._count += 1
        if self._run.committed:
            self._cut_off(failure)

    def _cut_off(self, failure: UpstreamFailure) -> None:
        """Content was sent: only the same revision can go on. Raises if nobody else has it."""
        came_further = self._run.pieces != self._pieces
        if came_further:  # it may fail as often again
            self._pieces = self._run.pieces
            self._cut, self._count = failure, 0 if isinstance(failure, SlotRecalled) else 1
            self._failures.clear()  # of the try that is over: what matters is who has room now
        able = self._able().keys()
        if not able - {self._last}:
            failure.details.setdefault("not_continued", "no_other_deployment")
            raise failure
        if came_further and able <= self._seen:
            self._seen = {self._last}

    async def next(self) -> tuple[Upstream, Slot | Refusal]:
        """The next to be tried. Raises UpstreamFailure, FlexUnavailable if none is worth it."""
        try:
            return await self._next()
        except CapacityExhausted as full:
            if self._cut is not None or not self._run.operation.flex:
                raise
            if isinstance(full, ModelDrained):
                raise
            raise _no_room_for_flex(self._run.model, full) from full

    async def _next(self) -> tuple[Upstream, Slot | Refusal]:
        untried = self._untried()
        if untried is None and self._unreached:
            untried = self._ejected()
        if untried is None and self._all_are_full():
            return self._affordable(*await self._wait())
        if untried is None:
            untried = self._ejected()
        if untried is None:
            await self._pause()
            untried = self._untried()
        if untried is None:
            raise self._worst()
        slot = reserved.admit(self._guard, self._run, untried.deployment.id)
        return self._affordable(untried, slot)

    def _affordable(
        self, upstream: Upstream, slot: Slot | Refusal
    ) -> tuple[Upstream, Slot | Refusal]:
        """That place, if one more try may be made. Raises UpstreamFailure."""
        if isinstance(slot, Slot) and not self._may_try():
            slot.release()
            raise self._worst()
        return upstream, slot

    def refuge(self, left: Upstream, *, committed: bool, came_further: bool) -> Place | None:
        """Another deployment and a slot of it, for the try under way on one that is down.

        `committed`: content was sent; `came_further`: some of it by this try. Its end counts
        as a try, as that of any other. None: nobody else can take the request, or none may.
        """
        guard, run, mine = self._guard, self._run, left.deployment.id
        if not came_further and self._count + 1 >= MOST_TRIES:
            return None
        able = self._able(committed=committed)
        best_first = offered(guard, self._ranking, run)
        names = [n for n in best_first if n in able and not guard.is_ejected(n)]
        if not came_further:
            names.sort(key=self._seen.__contains__)  # untried ones first
        for name in names:
            slot = reserved.admit(guard, self._run, name) if name != mine else None
            if isinstance(slot, Slot):
                if guard.may_retry(run.model, mine, moved=self._moved):
                    self._moved = True
                    return able[name], slot
                slot.release()
                return None
        return None

    def _untried(self) -> Upstream | None:
        """The best of those that this round has not seen."""
        able = self._able()
        for name in offered(self._guard, self._ranking, self._run):
            if name in able and name not in self._seen:
                return able[name]
        return None

    def _ejected(self) -> Upstream | None:
        """One that the guard does not offer, when all that it offers have failed this request.

        An open breaker says what was a while ago; the request would fail without it.
        """
        for name, upstream in self._able().items():
            if name not in self._seen:
                return upstream
        return None

    def _able(self, *, committed: bool = False) -> dict[str, Upstream]:
        """Those that serve the request, by id; the fleet may have changed since it began.

        `committed`: content was sent, though no failure has told so yet.
        """
        run, operation = self._run, self._run.operation
        committed = committed or run.committed
        return {
            upstream.deployment.id: upstream
            for upstream in self._upstreams.on_route(run.model, operation.route)
            if operation.missing(upstream.deployment) is None
            and (not committed or same_revision(run.revision, upstream.revision))
        }

    async def _pause(self) -> None:
        """Let a moment pass before the next round."""
        worst = self._worst()
        pause = max(next(self._pauses, math.inf), worst.retry_after or 0.0)
        self._paused += pause
        if not self._worth_another_round(worst):
            raise worst
        await asyncio.sleep(pause)
        self._seen -= self._full or set(self._seen)  # who had no slot is still untried
        self._full.clear()
        self._unreached.clear()
        self._earlier, self._failures = self._failures, []

    async def _wait(self) -> tuple[Upstream, Slot]:
        """Every deployment is full here: wait for one that is able, if a slot is expected soon.

        An answer that has begun waits for longer, and first; raises what cut it off if in vain.
        """
        while True:
            since = asyncio.get_running_loop().time()
            slot = await self._slot_soon()
            if isinstance(slot, Slot):
                upstream = self._able().get(slot.deployment)
                if upstream is not None:
                    self._failures.clear()  # that there was no room is no longer true
                    return upstream, slot
                slot.release()  # it left the fleet as the slot was handed over
            elif self._cut is None:
                raise slot.error(self._run.model)
            elif slot.reason is Reason.DRAINED:  # nothing will come
                raise self._worst()
            self._paused += asyncio.get_running_loop().time() - since
            if self._cut is not None and self._paused >= LONGEST_PAUSE:
                self._cut.details.setdefault("not_continued", "no_room")
                raise self._cut

    async def _slot_soon(self) -> Slot | Refusal:
        """A slot of one that is able, after a wait of moments."""
        run, begun = self._run, self._cut is not None
        among = self._able().keys() - self._unreached
        if run.may_share:
            return await wait_for_slot(self._guard, run.model, run.priority, among, begun=begun)
        if begun:
            return await reserved.wait_again(self._guard, run, among)
        return reserved.FULL

    def _all_are_full(self) -> bool:
        """Whether nobody who can be reached has a slot here, and that is all there is to tell."""
        none_has_answered = not any(
            failure.upstream_status or not (is_full(failure) or isinstance(failure, NoConnection))
            for failure in self._failures
        )
        return none_has_answered and (bool(self._full) or not self._failures)

    def _may_try(self) -> bool:
        """The first try is free; the others are bounded for each request and for all together.

        A try that reached nobody, or was turned away unread, has loaded nobody: to go on from
        there is a first try again. Each round makes such a try once per deployment, so they are
        bounded too.
        """
        if not self._count or (self._unseen and self._count < MOST_TRIES):
            return True
        if self._count >= MOST_TRIES:
            return False
        allowed = self._guard.may_retry(self._run.model, self._last, moved=self._moved)
        self._moved = self._moved or self._guard.is_ejected(self._last)
        return allowed

    def _worth_another_round(self, worst: UpstreamFailure) -> bool:
        """Not for what a pause does not change: a context, clocks that ran out, a model that
        breaks its calls, too long a pause.

        Where others had no slot, it changes that.
        """
        if isinstance(worst, UpstreamTimeout | ContextTooSmall | ToolCallBroken) and not self._full:
            return False
        return self._count < MOST_TRIES and self._paused <= LONGEST_PAUSE

    def _worst(self) -> UpstreamFailure:
        if self._cut is not None:  # not that nobody could go on
            self._cut.details.setdefault("not_continued", "no_other_deployment")
            return self._cut
        return min(self._failures or self._earlier, key=_says_less)


def offered(guard: Guard, ranking: ToolCallRanking, run: Run) -> list[str]:
    """Who may serve the request, best first; with tools, who gets calls wrong is last."""
    names = guard.candidates(run.model)
    if run.operation.tools is None or not names or guard.is_ejected(names[0]):
        return names  # an ejected one at the head is to be probed
    return ranking.ranked(names)


def is_full(failure: UpstreamFailure) -> bool:
    return isinstance(failure, CapacityExhausted)


def _no_room_for_flex(model: str, full: CapacityExhausted) -> FlexUnavailable:
    return FlexUnavailable(
        f"{model} has no room for flex requests now. Try again later, or without"
        ' service_tier "flex".',
        param="service_tier",
        retry_after=full.retry_after,
        details=full.details,
    )


def _says_less(failure: UpstreamFailure) -> tuple[bool, float]:
    """A failure says more than a full deployment; of those, the one that frees up first."""
    return is_full(failure), failure.retry_after or 0.0
