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
from typing import TypeVar

from prime_inference.domain.errors import (
    CapacityExhausted,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeout,
)
from prime_inference.gateway.clocks import Deadlines
from prime_inference.gateway.run import Run
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome, outcome_of
from prime_inference.reliability.runner import wait_for_slot
from prime_inference.reliability.slots import Refusal, Slot

T = TypeVar("T")
Attempt = Callable[[Upstream, Slot], Awaitable[T]]

MOST_TRIES = 4  # attempts that an upstream answered or broke; Google's SRE book allows 3
PAUSES = (0.25, 1.0)  # seconds before the second and third round
LONGEST_PAUSE = 5.0  # seconds in all; an upstream that asks for more is passed on to the client


class Failover:
    """Finds a deployment that answers."""

    def __init__(self, guard: Guard, deadlines: Deadlines) -> None:
        self._guard = guard
        self._deadlines = deadlines

    async def first_that_answers(
        self, run: Run, able: Sequence[Upstream], attempt: Attempt[T]
    ) -> T:
        """Attempt until one of `able` succeeds.

        Raises UpstreamFailure: the one of the last round that tells most, or at once what
        no other deployment can mend (a refusal, or a failure after content was sent).
        """
        guard = self._guard
        guard.began(run.model)
        tries: _Tries | None = None
        upstream = able[0] if len(able) == 1 else _best(guard, run.model, able)
        slot = guard.admit(upstream.deployment.id)
        while True:
            if isinstance(slot, Refusal):
                if tries is None:
                    tries = _Tries(guard, run, able)
                tries.refused(upstream, slot)
            else:
                run.deployment = upstream.deployment.id
                try:
                    answer = await attempt(upstream, slot)
                except UpstreamFailure as failure:
                    self._failed(run, upstream, slot, failure)
                    if tries is None:
                        tries = _Tries(guard, run, able)
                    tries.failed(upstream, failure)
                else:
                    slot.record(Outcome.ANSWERED)
                    return answer
                finally:
                    slot.release()
            upstream, slot = await tries.next()

    def _failed(self, run: Run, upstream: Upstream, slot: Slot, failure: UpstreamFailure) -> None:
        """Note how an attempt failed. Raises the failure if no other deployment can mend it."""
        slot.record(outcome_of(failure, failure.upstream_status))
        if isinstance(failure, UpstreamRefused):
            raise failure
        if not _is_full(failure):
            upstream.statistics.failure(self._deadlines.now())
        if run.committed:
            raise failure


class _Tries:
    """What has been tried for one request, and what comes next."""

    def __init__(self, guard: Guard, run: Run, able: Sequence[Upstream]) -> None:
        self._guard = guard
        self._run = run
        self._able = {upstream.deployment.id: upstream for upstream in able}
        self._count = 0
        self._moved = False  # left an ejected deployment, which is free once
        self._last = ""  # the deployment that failed last
        self._seen: set[str] = set()  # in this round
        self._failures: list[UpstreamFailure] = []  # of this round
        self._earlier: list[UpstreamFailure] = []  # of the round before
        self._pauses: Iterator[float] = iter(PAUSES)
        self._paused = 0.0  # seconds

    def refused(self, upstream: Upstream, refusal: Refusal) -> None:
        """It had no slot."""
        self._seen.add(upstream.deployment.id)
        self._failures.append(refusal.error(self._run.model))

    def failed(self, upstream: Upstream, failure: UpstreamFailure) -> None:
        """An attempt on it did not succeed."""
        self._last = upstream.deployment.id
        self._seen.add(self._last)
        self._failures.append(failure)
        self._count += 1

    async def next(self) -> tuple[Upstream, Slot | Refusal]:
        """The next to be tried. Raises UpstreamFailure if none is worth it."""
        untried = self._untried()
        if untried is None and self._all_are_full():
            return await self._wait()
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
        for name in self._guard.candidates(self._run.model):
            if name in self._able and name not in self._seen:
                return self._able[name]
        return None

    async def _pause(self) -> None:
        """Let a moment pass before the next round."""
        worst = self._worst()
        pause = max(next(self._pauses, math.inf), worst.retry_after or 0.0)
        self._paused += pause
        if not self._worth_another_round(worst):
            raise worst
        await asyncio.sleep(pause)
        self._seen.clear()
        self._earlier, self._failures = self._failures, []

    async def _wait(self) -> tuple[Upstream, Slot]:
        """Every deployment is full here: wait, if a slot is expected soon."""
        slot = await wait_for_slot(self._guard, self._run.model)
        if isinstance(slot, Refusal):
            raise slot.error(self._run.model)
        upstream = self._able.get(slot.deployment)
        if upstream is None:  # that deployment honours less than this request asks for
            slot.release()
            raise self._worst()
        return upstream, slot

    def _all_are_full(self) -> bool:
        return not any(
            failure.upstream_status or not _is_full(failure) for failure in self._failures
        )

    def _may_try(self) -> bool:
        """The first try is free; the others are bounded for each request and for all together."""
        if not self._count:
            return True
        if self._count >= MOST_TRIES:
            return False
        allowed = self._guard.may_retry(self._run.model, self._last, moved=self._moved)
        self._moved = self._moved or self._guard.is_ejected(self._last)
        return allowed

    def _worth_another_round(self, worst: UpstreamFailure) -> bool:
        """Not for what a pause does not change: clocks that ran out, or too long a pause."""
        if isinstance(worst, UpstreamTimeout):
            return False
        return self._count < MOST_TRIES and self._paused <= LONGEST_PAUSE

    def _worst(self) -> UpstreamFailure:
        return min(self._failures or self._earlier, key=_says_less)


def _best(guard: Guard, model: str, able: Sequence[Upstream]) -> Upstream:
    """The first of the guard's order that is able; any, if the guard offers none of them."""
    by_id = {upstream.deployment.id: upstream for upstream in able}
    for name in guard.candidates(model):
        if name in by_id:
            return by_id[name]
    return able[0]


def _is_full(failure: UpstreamFailure) -> bool:
    return isinstance(failure, CapacityExhausted)


def _says_less(failure: UpstreamFailure) -> tuple[bool, float]:
    """A failure says more than a full deployment; of those, the one that frees up first."""
    return _is_full(failure), failure.retry_after or 0.0
