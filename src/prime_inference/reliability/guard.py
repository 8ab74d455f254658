"""What the gateway asks before, during and after an attempt: one object per replica.

Everything here is memory and arithmetic; `Runner` carries the conversation with the store.

    guard.began(model)
    for deployment in guard.candidates(model):
        slot = guard.admit(deployment)
        if isinstance(slot, Slot):
            with slot:                          # given back whatever happens
                ...                             # slot.first_token() when it arrives
                slot.record(outcome_of(error))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Set
from random import Random

from prime_inference.domain.models import Deployment
from prime_inference.ports.clock import Clock
from prime_inference.ports.coordination import Beat, BreakerState, Push, Verdict
from prime_inference.reliability.breaker import Ticket
from prime_inference.reliability.commands import Command, Reply, ReturnBlocks
from prime_inference.reliability.coordinator import Coordinator
from prime_inference.reliability.decisions import Decisions, Retry
from prime_inference.reliability.deployment import DeploymentGuard
from prime_inference.reliability.ejection import rate_may_eject
from prime_inference.reliability.hedge import hedge_after
from prime_inference.reliability.model_pool import ModelPool
from prime_inference.reliability.reserved_capacity import ReservedCapacity
from prime_inference.reliability.roster import Roster, ServesAnotherModel
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Priority, Reason, Refusal, Slot
from prime_inference.reliability.status import DeploymentStatus, status_of
from prime_inference.reliability.waiting import Waiter

__all__ = ["Guard", "ServesAnotherModel"]

GONE_RETRY_S = 1.0  # the next choice will not offer it
NEAR = 1.5  # times the best's expected first token: half of the slots more in use, or half slower
REFRESH_S = 0.25  # what was measured is taken over: a human does not notice, a second would be late


class Guard:
    """Breakers, leases, waiting lines and budgets of one gateway replica.

    `replica` names this process and no other, before or after. `canary`: probes are sent by
    `probe_slot`'s caller; otherwise the next request to an ejected deployment is the probe.
    """

    def __init__(
        self,
        replica: str,
        settings: Settings,
        clock: Clock,
        random: Random,
        *,
        canary: bool = False,
    ) -> None:
        self.replica = replica
        self.wake: Callable[[], None] = _nothing  # called when `due` has something new
        self._settings = settings
        self._clock = clock
        self._random = random
        self.decisions = Decisions()
        self._probing = not canary
        self._refresh_at = -math.inf
        self._sequences = itertools.count(1)
        self._roster = Roster(self._guarded, self._pool_of, self._forgotten)
        # the roster's own, for every request asks them
        self._deployments = self._roster.members
        self._draining = self._roster.draining
        self._models = self._roster.pools
        self._coordinator = Coordinator(
            replica, settings, random, self._deployments, self._sequences, canary=canary
        )
        self.reserved = ReservedCapacity(
            replica, settings, clock, self._deployments, self._sequences,
            self._released, lambda: self.wake(),
        )  # fmt: skip

    # --- the fleet ---

    def configure(self, fleet: Iterable[Deployment]) -> None:
        """Take over the fleet as it is now. What is gone is drained: its requests go on.

        Raises ServesAnotherModel for a deployment that is known with another, and then changes
        nothing.
        """
        self._roster.configure(fleet)
        self.wake()

    def drain(self, deployment: str) -> None:
        """Offer it no more requests; once the last has ended, its block goes back."""
        member = self._deployments.get(deployment)
        if member is not None:
            self._roster.drain(member)

    def set_health(self, deployment: str, healthy: bool, *, down: bool = False) -> None:
        """What the active checks found; as little as breakers it can eject the last one.

        `down`: those who wait there wait in vain (`down_deployments`).
        """
        member = self._deployments.get(deployment)
        if member is not None:
            member.healthy = healthy
            if healthy or not down:
                member.found_down_at = None
            elif member.found_down_at is None:
                member.found_down_at = self._clock()

    # --- the request's path ---

    def began(self, model: str) -> bool:
        """A request began: it fills the retry budget.

        False: nobody asked for long and no slots are leased; see `runner.leased`.
        """
        pool = self._models.get(model)
        if pool is None:
            return True
        now = self._clock()
        pool.budget.request(now)
        if pool.ready:
            return True
        ready = pool.wake(now)
        self.wake()
        return ready

    def when_leased(self, model: str, call: Callable[[], None]) -> None:
        """Call back once the store has answered for the model, or failed to."""
        pool = self._models.get(model)
        if pool is None:
            call()
        else:
            pool.awaiting.append(call)

    def candidates(self, model: str) -> list[str]:
        """Deployments that may serve the model now, best first; empty if there is none."""
        pool = self._models.get(model)
        if pool is None:
            return []
        return [member.id for member in pool.ordered(self._clock(), self._probing)]

    def is_near(self, deployment: str, best: str) -> bool:
        """Whether it is expected to answer about as soon as `best`."""
        now = self._clock()
        one, other = self._deployments.get(deployment), self._deployments.get(best)
        if one is None or other is None:
            return False
        return one.expectation(now) <= NEAR * other.expectation(now)

    def admit(self, deployment: str, priority: Priority = Priority.INTERACTIVE) -> Slot | Refusal:
        """Take a slot at once, or be refused at once."""
        member = self._deployments.get(deployment)
        if member is None or deployment in self._draining:
            return Refusal(Reason.GONE, GONE_RETRY_S)
        now = self._clock()
        slot = self._models[member.model].admit(member, priority, now, self._released)
        if member.lease.ask_at <= now:
            self.wake()
        return slot

    def admit_any(
        self,
        model: str,
        priority: Priority = Priority.INTERACTIVE,
        among: Set[str] | None = None,
    ) -> Slot | Refusal:
        """Take a slot of the best candidate that has one, of `among` if given."""
        refusal = Refusal(Reason.GONE, GONE_RETRY_S)
        for name in self.candidates(model):
            if among is not None and name not in among:
                continue
            slot = self.admit(name, priority)
            if isinstance(slot, Slot):
                return slot
            refusal = slot
        return refusal

    def wait(
        self,
        model: str,
        priority: Priority,
        deliver: Callable[[Slot | Refusal], None],
        among: Set[str] | None = None,
        *,
        begun: bool = False,
    ) -> Waiter | Refusal:
        """Wait for a slot of any deployment of the model, of `among` if given, if that pays.

        Only after all were refused: who waits is served when a slot is given back or granted.
        An answer that has `begun` waits before those that have not. See `leave`.
        """
        pool = self._models.get(model)
        if pool is None:  # they were drained before they were ever used
            self.decisions.refusals[model, Reason.DRAINED] += 1
            return Refusal(Reason.DRAINED, GONE_RETRY_S)
        joined = pool.wait(priority, self._clock(), deliver, among, begun=begun)
        self.wake()
        return joined

    def leave(self, model: str, waiter: Waiter) -> bool:
        """Wait no longer; False if `deliver` was called already."""
        pool = self._models.get(model)
        return pool is not None and pool.line.leave(waiter)

    def may_retry(self, model: str, left: str, *, moved: bool) -> bool:
        """Whether a request that failed on `left` may be tried again; takes from the budget.

        Leaving an ejected deployment is free once per request (`moved`: it was done before):
        it cannot be repeated, since nothing new is sent there.
        """
        pool = self._models.get(model)
        if pool is None:
            return False
        elsewhere = any(member.id != left for member in pool.members)
        if not moved and elsewhere and self.is_ejected(left):
            self.decisions.retries[model, Retry.FREE] += 1
            return True
        paid = pool.budget.spend(self._clock())
        self.decisions.retries[model, Retry.PAID if paid else Retry.DENIED] += 1
        return paid

    def hedge_after(self, deployment: str, *, whole: bool = False) -> float | None:
        """Seconds without a first token after which to ask `may_hedge`; None: never.

        `whole`: without a whole answer.
        """
        member = self._deployments.get(deployment)
        if member is None:
            return None
        latency = member.whole if whole else member.first_token
        return hedge_after(latency, self._clock(), self._settings.retry)

    def may_hedge(self, model: str) -> bool:
        """Whether the budget has room for a hedge; takes it."""
        pool = self._models.get(model)
        allowed = pool is not None and pool.budget.spend(self._clock())
        self.decisions.hedges[model, allowed] += 1
        return allowed

    # --- probes ---

    def probes_due(self) -> list[str]:
        """Deployments for which this replica holds a ticket and no probe was sent."""
        return [
            member.id for member in self._deployments.values() if member.breaker.ticket_is_unused
        ]

    def probe_slot(self, deployment: str) -> Slot | None:
        """The slot a canary runs on; its outcome is the probe's verdict.

        None: no ticket, or no slot to spare for it; then another replica may try.
        """
        member = self._deployments.get(deployment)
        if member is None or not member.breaker.ticket_is_unused:
            return None
        pool = self._models[member.model]
        slot = pool.take(member, Priority.INTERACTIVE, self._clock(), self._released)
        return slot if isinstance(slot, Slot) else None

    # --- observation ---

    @property
    def degraded(self) -> bool:
        """Whether this replica goes by itself: the store is away, or a lease has lapsed."""
        now = self._clock()
        return self._coordinator.store_is_away or any(
            member.lease.lapsed(now) for member in self._deployments.values()
        )

    @property
    def replicas(self) -> int:
        """Replicas last seen by the store, this one included."""
        leases = [member.lease.replicas for member in self._deployments.values()]
        return max(leases, default=self._settings.lease.assumed_replicas)

    def is_ejected(self, deployment: str) -> bool:
        """Whether its breaker is not closed, or it was found unhealthy."""
        member = self._deployments.get(deployment)
        return member is None or not member.usable

    def down_deployments(self) -> dict[str, float]:
        """Those on which requests wait in vain, drained ones among them; for how many seconds."""
        times = {member.id: member.down_since for member in self._deployments.values()}
        now = self._clock()
        return {name: now - since for name, since in times.items() if since is not None}

    def signs_of_life(self, deployment: str) -> int:
        """First tokens and answers since the start; 0 for one that is not known."""
        member = self._deployments.get(deployment)
        return member.signs_of_life if member is not None else 0

    def waiting(self, model: str) -> int:
        """Requests waiting for a slot of that model."""
        pool = self._models.get(model)
        return pool.line.size if pool is not None else 0

    def status(self) -> list[DeploymentStatus]:
        """Every deployment, in the order of configuration."""
        now = self._clock()
        return [
            status_of(member, draining=member.id in self._draining, now=now)
            for member in self._deployments.values()
        ]

    # --- the conversation with the store (for `Runner` and the simulation) ---

    def due(self) -> list[Command]:
        """What to ask the store now; each command is followed by `accept` or `fail`."""
        now = self._clock()
        for pool in self._models.values():
            pool.refresh(now)
            if pool.line.size:
                pool.serve(now, self._probing, self._released)  # a lease may have lapsed to safe
                pool.expire(now)
        self._refresh_at = now + REFRESH_S
        self.reserved.attend(now)
        commands = self._coordinator.due(now)
        for pool in self._models.values():
            pool.look()
        return commands

    def next_due(self) -> float:
        """When to call `due` next, if `wake` is not called before."""
        deadlines = [pool.line.next_deadline for pool in self._models.values() if pool.line.size]
        waits = [deadline for deadline in deadlines if deadline is not None]
        refresh_at = math.inf if self._coordinator.idle else self._refresh_at
        own = self._coordinator.next_due(self._clock()), self.reserved.next_due
        return min([*own, refresh_at, *waits])

    def accept(self, command: Command, reply: Reply) -> None:
        """The store answered a command."""
        now = self._clock()
        self._coordinator.accept(command, reply, now)
        self.reserved.attend(now, answered=True)
        for pool in self._models.values():
            pool.look()
            if pool.line.size:
                pool.serve(now, self._probing, self._released)

    def fail(self, command: Command) -> None:
        """The store did not answer a command."""
        now = self._clock()
        self._coordinator.fail(command, now)
        self.reserved.attend(now)
        for pool in self._models.values():
            pool.look()
            if pool.line.size:  # the safe capacity may be more than nothing
                pool.serve(now, self._probing, self._released)

    def follow(self, push: Push) -> None:
        """A breaker has changed, or a beat: as pushed by the store."""
        self._coordinator.follow(push)
        if not isinstance(push, Beat):
            self.wake()

    def push_lost(self) -> None:
        """Nothing is pushed any more: read often."""
        self._coordinator.push_lost()
        self.wake()

    def farewell(self) -> ReturnBlocks:
        """The last command of a replica that stops with nothing in flight."""
        return self._coordinator.return_blocks(self._deployments)

    # --- inside ---

    def _guarded(self, spec: Deployment) -> DeploymentGuard:
        return DeploymentGuard(
            spec,
            self.replica,
            self._sequences,
            self._settings,
            self._clock,
            self._random,
            conclude=self._conclude,
            rate_may_eject=self._rate_may_eject,
            breaker_changed=self.decisions.breaker_changed,
        )

    def _pool_of(self, model: str) -> ModelPool:
        return ModelPool(model, self._settings, self._random, self.decisions)

    def _released(self, member: DeploymentGuard) -> None:
        if self.reserved.lines:
            self.reserved.serve(self._clock())
        pool = self._models[member.model]
        if pool.line.size:
            pool.serve(self._clock(), self._probing, self._released)
        if member.lease.closing:
            self._roster.forget_if_idle(member)
        if member.breaker.state is not BreakerState.CLOSED:
            self.wake()  # there is room for a probe

    def _forgotten(self, deployment: str) -> None:
        self._coordinator.removed(deployment)
        self.wake()

    def _conclude(self, ticket: Ticket, verdict: Verdict) -> None:
        self._coordinator.conclude(ticket, verdict, self._clock())
        self.wake()

    def _rate_may_eject(self, model: str) -> bool:
        return rate_may_eject(self._models[model].members)


def _nothing() -> None:
    """Nobody listens yet."""
