"""One request over as many deployments as it takes.

Which deployment comes first, whether it has a slot and whether another try may be made is
the guard's word (docs/reliability.md); this is the loop around it. In one round every
deployment is tried once; only when all have failed does another round begin, after a pause.

Almost every request ends with its first try, so the first one is made without any record of
tries: `_Tries` is made when something has gone wrong.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from prime_inference.domain.errors import (
    CapacityExhausted,
    ContextTooSmall,
    NoConnection,
    ToolCallBroken,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeout,
)
from prime_inference.domain.models import Deployment
from prime_inference.gateway.clocks import Deadlines
from prime_inference.gateway.continuation import same_revision
from prime_inference.gateway.hedging import Contend, Hedge, Second
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import Homes
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome, outcome_of
from prime_inference.reliability.runner import wait_for_slot
from prime_inference.reliability.slots import Refusal, Slot
from prime_inference.routing.tool_calls import ToolCallRanking

T = TypeVar("T")
Attempt = Callable[[Upstream, Slot, Hedge[T] | None], Awaitable[T]]

MOST_TRIES = 4  # attempts that an upstream answered or broke; Google's SRE book allows 3
PAUSES = (0.25, 1.0)  # seconds before the second and third round
LONGEST_PAUSE = 5.0  # seconds in all; an upstream that asks for more is passed on to the client


class Failover:
    """Finds a deployment that answers."""

    def __init__(
        self,
        guard: Guard,
        upstreams: Upstreams,
        deadlines: Deadlines,
        tool_calls: ToolCallRanking,
    ) -> None:
        self._guard = guard
        self._upstreams = upstreams
        self._deadlines = deadlines
        self._tool_calls = tool_calls
        self._homes = Homes()

    async def first_that_answers(
        self, run: Run, able: Sequence[Upstream], attempt: Attempt[T], contend: Contend[T]
    ) -> T:
        """Attempt until one of `able` succeeds; `contend` makes a second attempt beside a late one.

        Raises UpstreamFailure: the one of the last round that tells most, or at once what
        no other deployment can mend (a refusal, or an answer cut off that nobody can continue).
        """
        guard = self._guard
        guard.began(run.model)
        tries: _Tries | None = None
        hedge: Hedge[T] | None = None
        upstream = able[0]
        if len(able) > 1:
            upstream = self._first(run, able)
            hedge = self._hedge(run, able, upstream, contend)
        slot = guard.admit(upstream.deployment.id)
        going = attempt
        while True:
            second: Second[T] | None = None
            if isinstance(slot, Refusal):
                tries = tries or _Tries(guard, self._upstreams, self._tool_calls, run)
                tries.refused(upstream, slot)
            else:
                run.deployment = upstream.deployment.id
                try:
                    answer = await going(upstream, slot, hedge)
                except UpstreamFailure as failure:
                    self._failed(run, upstream, slot, failure)
                    tries = tries or _Tries(guard, self._upstreams, self._tool_calls, run)
                    tries.failed(upstream, failure)
                    second = await self._outcome(hedge, tries)
                except asyncio.CancelledError:
                    if hedge is None or (second := hedge.overtook()) is None:
                        raise
                    slot.late(whole=not run.operation.stream)
                    tries = _Tries(guard, self._upstreams, self._tool_calls, run)
                    tries.left(upstream)
                else:
                    _answered(run, slot, measure=len(able) > 1)
                    return answer
                finally:
                    if hedge is not None:
                        hedge.call_off()
                    slot.release()
            hedge = None  # one is enough for a request
            going = attempt
            if second is None:
                upstream, slot = await tries.next()
            else:
                upstream, slot, going = second

    def _hedge(
        self, run: Run, able: Sequence[Upstream], upstream: Upstream, contend: Contend[T]
    ) -> Hedge[T] | None:
        """What is done if this attempt is late; None as long as nobody can tell what late is."""
        whole = not run.operation.stream
        after = self._guard.hedge_after(upstream.deployment.id, whole=whole)
        if after is None:
            return None
        return Hedge(after, partial(self._place_beside, run, able, upstream), contend)

    def _place_beside(
        self, run: Run, able: Sequence[Upstream], upstream: Upstream
    ) -> tuple[Upstream, Slot] | None:
        """Another deployment and a slot on it, if the budget has room for a second attempt."""
        guard = self._guard
        by_id = {each.deployment.id: each for each in able if each is not upstream}
        for name in _offered(guard, self._tool_calls, run):
            if name not in by_id or guard.is_ejected(name):
                continue
            slot = guard.admit(name)
            if isinstance(slot, Slot):
                if guard.may_hedge(run.model):
                    run.hedged = True
                    return by_id[name], slot
                slot.release()
                return None
        return None

    async def _outcome(self, hedge: Hedge[T] | None, tries: _Tries) -> Second[T] | None:
        """What becomes of the second attempt when the first has failed."""
        if hedge is None:
            return None
        second = await hedge.outcome()
        if second is None and hedge.failed is not None:
            upstream, failure = hedge.failed
            self._count(upstream, failure)
            tries.failed(upstream, failure)
        return second

    def _first(self, run: Run, able: Sequence[Upstream]) -> Upstream:
        """The session's own, else the best; any, if the guard offers none of the able."""
        by_id = {upstream.deployment.id: upstream for upstream in able}
        offered = [name for name in _offered(self._guard, self._tool_calls, run) if name in by_id]
        if not offered:
            return able[0]
        # who is offered although he is ejected is to be probed, whatever session comes by
        if run.session and not self._guard.is_ejected(offered[0]):
            if run.operation.tools is not None:
                offered = self._tool_calls.best(offered)
            return by_id[self._homes.choose(run.session, by_id, offered)]
        return by_id[offered[0]]

    def _failed(self, run: Run, upstream: Upstream, slot: Slot, failure: UpstreamFailure) -> None:
        """Note how an attempt failed. Raises the failure if no other deployment can mend it."""
        slot.record(outcome_of(failure, failure.upstream_status))
        if isinstance(failure, UpstreamRefused):
            if not run.committed:
                raise failure
        else:
            self._count(upstream, failure)
        if run.committed and not run.resumable:
            raise failure

    def _count(self, upstream: Upstream, failure: UpstreamFailure) -> None:
        """Note the failure with the deployment's statistics, if it tells something of it."""
        if not _is_full(failure) and not isinstance(failure, ContextTooSmall):
            upstream.statistics.failure(self._deadlines.now())


class _Tries:
    """What has been tried for one request, and what comes next."""

    def __init__(
        self, guard: Guard, upstreams: Upstreams, tool_calls: ToolCallRanking, run: Run
    ) -> None:
        self._guard = guard
        self._tool_calls = tool_calls
        self._upstreams = upstreams
        self._run = run
        self._count = 0
        self._unseen = False  # the last try reached nobody
        self._moved = False  # left an ejected deployment, which is free once
        self._last = ""  # the deployment that failed last
        self._seen: set[str] = set()  # in this round
        self._full: set[str] = set()  # of those, they had no slot
        self._failures: list[UpstreamFailure] = []  # of this round
        self._earlier: list[UpstreamFailure] = []  # of the round before
        self._pauses: Iterator[float] = iter(PAUSES)
        self._begun: Deployment | None = None  # that wrote a part of what was sent
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
        self._last = upstream.deployment.id
        self._seen.add(self._last)
        self._failures.append(failure)
        self._unseen = isinstance(failure, NoConnection)
        if not self._unseen:
            self._count += 1
        if self._run.committed:
            self._cut_off(upstream, failure)

    def _cut_off(self, upstream: Upstream, failure: UpstreamFailure) -> None:
        """Content was sent: only the same revision can go on. Raises if nobody else has it."""
        self._begun = upstream.deployment
        came_further = self._run.pieces != self._pieces
        if came_further:  # it may fail as often again
            self._pieces = self._run.pieces
            self._cut, self._count = failure, 1
        able = self._able().keys()
        if not able - {self._last}:
            raise failure
        if came_further and able <= self._seen:
            self._seen = {self._last}

    async def next(self) -> tuple[Upstream, Slot | Refusal]:
        """The next to be tried. Raises UpstreamFailure if none is worth it."""
        untried = self._untried()
        if untried is None and self._all_are_full():
            return await self._wait()
        if untried is None:
            untried = self._ejected()
        if untried is None:
            await self._pause()
            untried = self._untried()
        if untried is None:
            raise self._worst()
        slot = self._guard.admit(untried.deployment.id)
        if isinstance(slot, Slot) and not self._may_try():
            slot.release()
            raise self._worst()
        return untried, slot

    def _untried(self) -> Upstream | None:
        """The best of those that this round has not seen."""
        able = self._able()
        for name in _offered(self._guard, self._tool_calls, self._run):
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

    def _able(self) -> dict[str, Upstream]:
        """Those that serve the request, by id; the fleet may have changed since it began."""
        run, operation, begun = self._run, self._run.operation, self._begun
        return {
            upstream.deployment.id: upstream
            for upstream in self._upstreams.on_route(run.model, operation.route)
            if operation.missing(upstream.deployment) is None
            and (begun is None or same_revision(run.revision, begun, upstream.deployment))
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
        self._earlier, self._failures = self._failures, []

    async def _wait(self) -> tuple[Upstream, Slot]:
        """Every deployment is full here: wait, if a slot is expected soon."""
        model = self._run.model
        while True:
            slot = await wait_for_slot(self._guard, model)
            if isinstance(slot, Refusal):
                await self._wait_on(slot)
                continue
            upstream = self._able().get(slot.deployment)
            if upstream is not None:
                return upstream, slot
            slot.release()
            if any(
                each.deployment.id == slot.deployment for each in self._upstreams.serving(model)
            ):
                raise self._worst()  # that deployment honours less than this request asks for
            # it left the fleet as the slot was handed over: another one is as good

    async def _wait_on(self, refusal: Refusal) -> None:
        """Raises UpstreamFailure, unless an answer that has begun may wait for its end."""
        if self._cut is None:
            raise refusal.error(self._run.model)
        pause = max(PAUSES[0], refusal.retry_after_s)
        self._paused += pause
        if self._paused > LONGEST_PAUSE:
            raise self._cut
        await asyncio.sleep(pause)

    def _all_are_full(self) -> bool:
        return not any(
            failure.upstream_status or not _is_full(failure) for failure in self._failures
        )

    def _may_try(self) -> bool:
        """The first try is free; the others are bounded for each request and for all together.

        A try that reached nobody has loaded nobody: to go on from there is a first try again.
        Each round makes such a try once per deployment, so they are bounded too.
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
            return self._cut
        return min(self._failures or self._earlier, key=_says_less)


def _offered(guard: Guard, tool_calls: ToolCallRanking, run: Run) -> list[str]:
    """Who may serve the request, best first; with tools, who gets calls wrong is last."""
    offered = guard.candidates(run.model)
    if run.operation.tools is None or not offered or guard.is_ejected(offered[0]):
        return offered  # an ejected one at the head is to be probed
    return tool_calls.ranked(offered)


def _answered(run: Run, slot: Slot, *, measure: bool) -> None:
    slot.record(Outcome.ANSWERED)
    if measure and not run.operation.stream:
        slot.whole_answer()


def _is_full(failure: UpstreamFailure) -> bool:
    return isinstance(failure, CapacityExhausted)


def _says_less(failure: UpstreamFailure) -> tuple[bool, float]:
    """A failure says more than a full deployment; of those, the one that frees up first."""
    return _is_full(failure), failure.retry_after or 0.0
