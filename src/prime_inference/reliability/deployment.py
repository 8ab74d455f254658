"""Everything one replica knows of one deployment, and the rules that need all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from random import Random

from prime_inference.domain.models import Deployment
from prime_inference.ports.clock import Clock
from prime_inference.ports.coordination import BreakerState, Cause, Verdict
from prime_inference.reliability.block_lease import BlockLease
from prime_inference.reliability.breaker import Breaker, Ticket
from prime_inference.reliability.decisions import BreakerChange
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.recall import Recall
from prime_inference.reliability.reserved_lease import ReservedLease
from prime_inference.reliability.reserved_slots import ReservedSlot, SharedSlot
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Priority, Slot
from prime_inference.reliability.statistics import HoldingTime, LatencyHistogram

RATE_S = 0.25  # all slots are looked at, thousands maybe, and refusals may come by the thousand

VERDICTS = {
    Outcome.ANSWERED: Verdict.ANSWERED,
    Outcome.FAILED: Verdict.FAILED,
    Outcome.UNREACHED: Verdict.FAILED,
    Outcome.NEUTRAL: Verdict.LOST,
}
"""What the end of an attempt says of the probe that it was."""


class DeploymentGuard:
    """Breaker, lease, statistics and slots in use of one deployment."""

    def __init__(
        self,
        spec: Deployment,
        holder: str,
        sequences: Iterator[int],
        settings: Settings,
        clock: Clock,
        random: Random,
        conclude: Callable[[Ticket, Verdict], None],
        rate_may_eject: Callable[[str], bool],
        breaker_changed: Callable[[BreakerChange], None],
    ) -> None:
        self.spec = spec
        self.id = spec.id
        self.model = spec.model
        self.breaker = Breaker(spec.id, settings.breaker, random, breaker_changed)
        self.lease = BlockLease(spec.id, holder, spec.slots, settings.lease, sequences)
        self.first_token = LatencyHistogram()
        self.whole = LatencyHistogram()  # answers that are not streamed, to their end
        self.expected_first_token_s = 1.0  # with all slots free; see `ModelPool.refresh`
        self.holding = HoldingTime()
        self.answered = 0  # attempts since the start, for metrics
        self.failed = 0
        self.refused = 0
        self.in_flight = 0  # on slots that everybody shares
        self._taken: dict[Slot, None] = {}  # of the shared lease
        self._rate = 0.0  # slots per second
        self._rate_limit = 0  # slots, when that was found
        self._rate_until = -math.inf
        self.reserved: dict[str, ReservedLease] = {}  # by reservation
        self.shared: dict[SharedSlot, None] | None = None  # taken ones, where some are reserved
        self.recall: Recall | None = None  # where some are reserved
        self.signs_of_life = 0  # first tokens and answers since the start
        self.healthy = True  # by the active checks
        self.found_down_at: float | None = None  # unhealthy, and no sign of life since
        self._clock = clock
        self._conclude = conclude
        self._rate_may_eject = rate_may_eject

    def moved(self) -> None:
        """It is at another address, of which nothing is known."""
        self.breaker.moved()
        self.healthy, self.found_down_at = True, None

    @property
    def batch_in_flight(self) -> int:
        return self.lease.batch_in_flight

    @property
    def usable(self) -> bool:
        """Neither ejected nor found unhealthy."""
        return self.healthy and self.breaker.state is BreakerState.CLOSED

    @property
    def down_since(self) -> float | None:
        """Since when those who wait there wait in vain: found down, or nobody gets a connection."""
        breaker = self.breaker
        if breaker.state is not BreakerState.CLOSED and breaker.cause is Cause.UNREACHABLE:
            return breaker.opened_at
        return self.found_down_at

    def may_rest(self, *, canary: bool) -> bool:
        """Whether slots are needed neither by requests nor by canaries, if such are sent."""
        lease = self.lease
        if self.in_flight or (canary and self.breaker.state is not BreakerState.CLOSED):
            return False
        return lease.resting or (lease.ready and lease.unused)

    def expectation(self, now: float) -> float:
        """Expected seconds to the first token of one more request; infinite if there is no slot."""
        lease = self.lease
        limit = lease.granted if now < lease.valid_until else lease.safe
        in_flight = self.in_flight
        if in_flight >= limit:
            return math.inf
        return self.expected_first_token_s * (1 + in_flight / limit)

    def has_room(self, now: float) -> bool:
        """Whether a slot is free."""
        return self.in_flight < self.lease.limit(now)

    def take(
        self,
        priority: Priority,
        ticket: Ticket | None,
        now: float,
        on_release: Callable[[DeploymentGuard], None],
    ) -> Slot | None:
        """A slot, if the lease has room for one of this priority."""
        lease = self.lease
        in_flight = self.in_flight
        batch = lease.batch_in_flight
        for_batch = priority is Priority.BATCH
        limit = lease.granted if now < lease.valid_until else lease.safe
        if in_flight >= limit or (for_batch and batch >= lease.batch_limit(now)):
            self.turn_away(priority, now)
            return None
        self.in_flight = in_flight = in_flight + 1
        if for_batch:
            lease.batch_in_flight = batch = batch + 1
        if for_batch or in_flight - batch > lease.peak_interactive or in_flight >= lease.granted:
            lease.demand(in_flight - batch, batch, now, for_batch=for_batch)
        if self.shared is not None:
            slot: Slot = SharedSlot(self, priority, now, ticket, on_release, self.shared)
        else:
            slot = Slot(self, priority, now, ticket, on_release)
        self._taken[slot] = None
        return slot

    def turn_away(self, priority: Priority, now: float) -> None:
        """Count a request of that priority that finds no slot: the store is told of its want."""
        self.refused += 1
        self.lease.refused(
            self.in_flight - self.batch_in_flight,
            self.batch_in_flight,
            for_batch=priority is Priority.BATCH,
            now=now,
        )

    def take_reserved(
        self, reservation: str, now: float, on_release: Callable[[DeploymentGuard], None]
    ) -> ReservedSlot | None:
        """A slot of that reservation, if it has one here that is free."""
        lease = self.reserved.get(reservation)
        if lease is None or lease.closing or lease.in_flight >= lease.limit(now):
            return None
        lease.in_flight += 1
        lease.demand(lease.need, 0, now)
        return ReservedSlot(self, lease, now, on_release)

    @property
    def all_in_flight(self) -> int:
        """Requests on slots of any kind."""
        return self.in_flight + sum(lease.in_flight for lease in self.reserved.values())

    def leases(self) -> Iterator[tuple[BlockLease, int]]:
        """Every lease, with what is in flight under it. Whom slots are lent by asks first."""
        for lease in self.reserved.values():
            lease.offered = self.usable
            yield lease, lease.in_flight
        yield self.lease, self.in_flight

    def lease_of(self, reservation: str) -> BlockLease | None:
        return self.reserved.get(reservation) if reservation else self.lease

    def give_back(self, slot: Slot) -> None:
        """Called once by each slot."""
        self.in_flight -= 1
        del self._taken[slot]
        if slot.priority is Priority.BATCH:
            self.lease.batch_in_flight -= 1
        assert self.in_flight >= self.batch_in_flight >= 0
        self.holding.add(self._clock() - slot.started_at)

    def first_token_arrived(self, slot: Slot) -> None:
        """A first token is an answer to a probe; long streams would keep a breaker half-open."""
        now = self._clock()
        self.signs_of_life += 1
        self.first_token.add(now - slot.started_at, now)
        if slot.ticket is not None:
            self._end_probe(slot, Verdict.ANSWERED)

    def was_as_late(self, slot: Slot, *, whole: bool) -> None:
        """A whole answer, or a first token, took at least until now."""
        now = self._clock()
        (self.whole if whole else self.first_token).add(now - slot.started_at, now)

    def attempt_ended(self, slot: Slot, outcome: Outcome) -> None:
        """Count an attempt; one that began before the breaker last changed tells old news."""
        if outcome is Outcome.ANSWERED:
            self.answered += 1
            self.signs_of_life += 1
        elif outcome is not Outcome.NEUTRAL:
            self.failed += 1
        if slot.ticket is not None:
            self._end_probe(slot, VERDICTS[outcome])
        if outcome is Outcome.NEUTRAL or slot.breaker_generation != self.breaker.generation:
            return
        if outcome is Outcome.ANSWERED:
            self.breaker.answered(self._clock())
        else:
            reached = outcome is not Outcome.UNREACHED
            self.breaker.failed(self._clock(), self._rate_may_eject(self.model), reached=reached)

    def slots_per_second(self, priority: Priority, now: float) -> float:
        """How often a slot for that priority becomes free; 0 if that was never seen.

        One that is held for longer than the mean is not about to become free: it is taken to be
        held for as long again. That is looked into once in `RATE_S` for interactive requests.
        """
        mean, for_batch = self.holding.mean_s, priority is Priority.BATCH
        limit = self.lease.batch_limit(now) if for_batch else self.lease.limit(now)
        if not mean or not limit:
            return 0.0
        if for_batch:
            return _slots_per_second(
                now, mean, limit, [slot for slot in self._taken if slot.priority is priority]
            )
        if limit != self._rate_limit or now >= self._rate_until:
            self._rate = _slots_per_second(now, mean, limit, self._taken)
            self._rate_limit, self._rate_until = limit, now + RATE_S
        return self._rate

    def _end_probe(self, slot: Slot, verdict: Verdict) -> None:
        ticket, slot.ticket = slot.ticket, None
        if ticket is not None:
            self._conclude(ticket, verdict)


def _slots_per_second(now: float, mean: float, limit: int, taken: Collection[Slot]) -> float:
    often = sum(1 / max(mean, now - slot.started_at) for slot in taken)
    free = limit - len(taken)
    return often + free / mean if free >= 0 else often * limit / len(taken)
