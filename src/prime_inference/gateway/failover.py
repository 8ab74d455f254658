"""One request over as many deployments as it takes.

Which deployment comes first, whether it has a slot and whether another try may be made is
the guard's word (docs/reliability.md); this is the loop around it.

Almost every request ends with its first try, so the first one is made without any record of
tries: `Tries` is made when something has gone wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from prime_inference.domain.errors import (
    ContextTooSmall,
    UpstreamDown,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeout,
)
from prime_inference.gateway.clocks import Deadlines
from prime_inference.gateway.evacuation import Evacuation, Stay
from prime_inference.gateway.hedging import Contend, Hedge
from prime_inference.gateway.reserved import ReservedPlaces
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import Homes
from prime_inference.gateway.tries import Place, Tries, is_full, offered
from prime_inference.gateway.upstream_errors import refuses_us
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome, outcome_of
from prime_inference.reliability.runner import begin
from prime_inference.reliability.slots import Refusal, Slot
from prime_inference.routing.tool_calls import ToolCallRanking

T = TypeVar("T")
Attempt = Callable[[Upstream, Slot, Stay[T] | None], Awaitable[T]]
Next = tuple[Upstream, Slot, Attempt[T]]


class Failover:
    """Finds a deployment that answers."""

    def __init__(
        self,
        guard: Guard,
        upstreams: Upstreams,
        deadlines: Deadlines,
        ranking: ToolCallRanking,
    ) -> None:
        self._guard = guard
        self._ranking = ranking
        self._upstreams = upstreams
        self._deadlines = deadlines
        self._homes = Homes(guard)
        self._reserved = ReservedPlaces(guard, self._homes)
        self._evacuation = Evacuation(guard, deadlines, self._refuge)

    async def first_that_answers(
        self, run: Run, able: Sequence[Upstream], attempt: Attempt[T], contend: Contend[T]
    ) -> T:
        """Attempt until one of `able` succeeds; `contend` makes a second attempt beside a late one.

        Raises UpstreamFailure: the one of the last round that tells most, or at once what
        no other deployment can mend (a refusal, or an answer cut off that nobody can continue).
        """
        guard = self._guard
        await begin(guard, run.model)
        tries: Tries | None = None
        stay: Stay[T] | None = None
        place = await self._reserved.first(run, able) if run.reserved else None
        upstream, slot, hedge = place or self._shared_place(run, able, contend)
        going = attempt
        while True:
            second: Next[T] | None = None
            if isinstance(slot, Refusal):
                tries = tries or Tries(guard, self._upstreams, self._ranking, run)
                tries.refused(upstream, slot)
            else:
                _served_by(run, upstream, slot)
                if len(able) > 1:
                    stay = self._evacuation.begin(Stay(run, upstream, tries, hedge))
                try:
                    answer = await going(upstream, slot, stay)
                except UpstreamFailure as failure:
                    self._failed(run, upstream, slot, failure)
                    tries = self._tries(run, tries, stay)
                    tries.failed(upstream, failure)
                    second = await self._outcome(attempt, tries, hedge, stay)
                except asyncio.CancelledError:
                    if hedge is None or (second := hedge.overtook()) is None:
                        raise
                    slot.late(whole=not run.operation.stream)
                    tries = Tries(guard, self._upstreams, self._ranking, run)
                    tries.left(upstream)
                else:
                    _answered(run, slot, measure=len(able) > 1)
                    return answer
                finally:
                    self._over(hedge, stay)
                    slot.release()
            hedge = None  # one is enough for a request
            going = attempt
            if second is None:
                upstream, slot = await tries.next()
            else:
                upstream, slot, going = second

    def _shared_place(
        self, run: Run, able: Sequence[Upstream], contend: Contend[T]
    ) -> tuple[Upstream, Slot | Refusal, Hedge[T] | None]:
        upstream, hedge = able[0], None
        if len(able) > 1:
            upstream = self._first(run, able)
            hedge = self._hedge(run, able, upstream, contend)
        return upstream, self._guard.admit(upstream.deployment.id, run.priority), hedge

    def _hedge(
        self, run: Run, able: Sequence[Upstream], upstream: Upstream, contend: Contend[T]
    ) -> Hedge[T] | None:
        """What is done if this attempt is late; None as long as nobody can tell what late is.

        Nothing for a flex request: nobody waits for it, and two attempts cost what one saves.
        """
        if run.operation.flex:
            return None
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
        for name in offered(guard, self._ranking, run):
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

    def _tries(self, run: Run, tries: Tries | None, stay: Stay[Any] | None) -> Tries:
        """What has been tried; made when something has gone wrong."""
        if tries is None and stay is not None:
            tries = stay.tries
        return tries or Tries(self._guard, self._upstreams, self._ranking, run)

    def _refuge(self, stay: Stay[Any]) -> Place | None:
        """Where a request that waits in vain can go on."""
        stay.tries = self._tries(stay.run, None, stay)
        relay = stay.relay
        return stay.tries.refuge(
            stay.upstream,
            committed=relay is not None and relay.committed,
            came_further=relay is not None and relay.brought_content,
        )

    def _over(self, hedge: Hedge[T] | None, stay: Stay[T] | None) -> None:
        """An attempt has ended: nothing that was begun beside it goes on."""
        if hedge is not None:
            hedge.call_off()
        if stay is not None:
            self._evacuation.end(stay)

    async def _outcome(
        self, attempt: Attempt[T], tries: Tries, hedge: Hedge[T] | None, stay: Stay[T] | None
    ) -> Next[T] | None:
        """Where it goes on when an attempt has failed: in its refuge, or with its hedge."""
        refuge = None if stay is None else stay.take_refuge()
        if refuge is not None:
            return *refuge, attempt
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
        names = [name for name in offered(self._guard, self._ranking, run) if name in by_id]
        if not names:
            return able[0]
        # who is offered although he is ejected is to be probed, whatever session comes by
        if run.session and not self._guard.is_ejected(names[0]):
            if run.operation.tools is not None:
                names = self._ranking.best(names)
            return by_id[self._homes.choose(run, by_id, names)]
        return by_id[names[0]]

    def _failed(self, run: Run, upstream: Upstream, slot: Slot, failure: UpstreamFailure) -> None:
        """Note how an attempt failed. Raises the failure if no other deployment can mend it."""
        if isinstance(failure, UpstreamTimeout) and failure.clock == "total" and slot.has_seen_life:
            slot.record(Outcome.NEUTRAL)  # such an answer is too long for the clock anywhere
            raise failure
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
        if refuses_us(failure.upstream_status):
            upstream.refusals += 1
        if not is_full(failure) and not isinstance(failure, ContextTooSmall | UpstreamDown):
            upstream.statistics.failure(self._deadlines.now())


def _served_by(run: Run, upstream: Upstream, slot: Slot) -> None:
    run.deployment = upstream.deployment.id
    if not run.told:
        run.pool = slot.pool


def _answered(run: Run, slot: Slot, *, measure: bool) -> None:
    slot.record(Outcome.ANSWERED)
    if measure and not run.operation.stream:
        slot.whole_answer()
