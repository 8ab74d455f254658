"""The deployments of one model on one replica: which first, who waits, what may be retried."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from random import Random

from prime_inference.ports.coordination import BreakerState
from prime_inference.reliability.breaker import Ticket
from prime_inference.reliability.decisions import Decisions, Wait
from prime_inference.reliability.deployment import DeploymentGuard
from prime_inference.reliability.ejection import eligible
from prime_inference.reliability.retry_budget import RetryBudget
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Priority, Reason, Refusal, Slot
from prime_inference.reliability.waiting import Waiter, WaitingLine

TIE = 0.1  # expectations nearer than this are equal: chance decides, or all replicas pick the same
ANSWER_S = 0.25  # until the store has answered, asked a second time if need be
LONGEST_RETRY_S = 60.0  # OpenAI's and Anthropic's clients heed no longer Retry-After
JITTER = 0.1  # replicas that know the same do not say the same
UNKNOWN_FIRST_TOKEN_S = 1.0  # only compared with itself: nothing of this model was measured yet


class ModelPool:
    """Members, waiting line and retry budget of one model."""

    def __init__(
        self, model: str, settings: Settings, random: Random, decisions: Decisions
    ) -> None:
        self.model = model
        self.members: Sequence[DeploymentGuard] = ()
        self.line = WaitingLine()
        self.budget = RetryBudget(settings.retry)
        self.ready = False  # slots are leased, or it is known that they cannot be
        self.awaiting: list[Callable[[], None]] = []  # to be called when it is
        self._promised_until = -math.inf  # slots up to then are for those who were sent away
        self._settings = settings
        self._random = random
        self._decisions = decisions

    def refresh(self, now: float) -> None:
        """Take over what was measured since; several times a second, not with every request."""
        medians = [member.first_token.quantile(0.5, now) for member in self.members]
        known = [median for median in medians if median is not None]
        unknown = min(known) if known else UNKNOWN_FIRST_TOKEN_S  # the unknown is tried
        for member, median in zip(self.members, medians, strict=True):
            member.expected_first_token_s = unknown if median is None else median
        if not self.line.size and any(m.usable and m.has_room(now) for m in self.members):
            self._promised_until = -math.inf  # there is room: those who were sent away do not come

    def wake(self, now: float) -> bool:
        """Ask for slots again if none are leased because nobody asked; whether there are some."""
        for member in self.members:
            member.lease.wake(now)
        return any(member.lease.ready for member in self.members) or not self.members

    def look(self) -> None:
        """Leases have changed: see whether slots are leased, and tell who waits for that."""
        leases = [member.lease for member in self.members]
        some = any(lease.ready for lease in leases)
        self.ready = some and not any(lease.resting for lease in leases)
        if (some or not self.members) and self.awaiting:
            awaiting, self.awaiting = self.awaiting, []
            for call in awaiting:
                call()

    def ordered(self, now: float, probing: bool) -> Sequence[DeploymentGuard]:
        """Who may serve a request now, best first.

        With `probing`, a deployment that waits for its probe is at the head. Full ones are last;
        in between decides the expected time to the first token.
        """
        members = self.members
        if len(members) < 2:
            return members
        offered = eligible(members, now)
        if offered[0].usable:
            offered = self._by_expectation(offered, now)
        if probing and len(offered) < len(members):
            waiting = [m for m in members if _awaits_probe(m)]
            if waiting:
                return waiting + [m for m in offered if m not in waiting]
        return offered

    def admit(
        self,
        member: DeploymentGuard,
        priority: Priority,
        now: float,
        on_release: Callable[[DeploymentGuard], None],
    ) -> Slot | Refusal:
        """A slot of that member for a newcomer, unless somebody who goes first waits for it."""
        if self.line.size and self.line.is_overtaken_by(priority, member.id):
            member.turn_away(priority, now)
            return self._refusal(Reason.FULL, priority, self.expected_wait(priority, now), now)
        return self.take(member, priority, now, on_release)

    def take(
        self,
        member: DeploymentGuard,
        priority: Priority,
        now: float,
        on_release: Callable[[DeploymentGuard], None],
    ) -> Slot | Refusal:
        """A slot of that member, or when to come again."""
        ticket: Ticket | None = None
        if member.breaker.state is not BreakerState.CLOSED:
            ticket = member.breaker.use_ticket()
        slot = member.take(priority, ticket, now, on_release)
        if slot is not None:
            return slot
        if ticket is not None:
            member.breaker.use_ticket_by = now  # unused after all: it goes back
        return self._refusal(Reason.FULL, priority, self.expected_wait(priority, now), now)

    def expected_wait(self, priority: Priority, now: float, among: Set[str] | None = None) -> float:
        """Seconds until a newcomer who wants one `among` would have a slot, by the line.

        Infinite if nobody can tell.
        """
        rate = sum(member.slots_per_second(priority, now) for member in self._usable(among))
        if rate <= 0:  # no slot was ever given back here, or others hold them all
            return math.inf
        return (self.line.ahead_of(priority, among) + 1) / rate

    def _told(
        self,
        reason: Reason,
        priority: Priority,
        expected: float,
        now: float,
        among: Set[str] | None,
    ) -> Refusal:
        """A refusal that a client is told: he is to come after those who were sent away before.

        Told the same, they would come together and most of them be refused once more. Of those
        who cannot come within LONGEST_RETRY_S chance decides who comes when. Batch has no turns:
        it would take those of interactive requests.
        """
        refusal = self._refusal(reason, priority, expected, now)
        soonest = refusal.retry_after_s
        rate = sum(member.slots_per_second(priority, now) for member in self._usable(among))
        chance = self._random.random()
        if rate <= 0 or not math.isfinite(soonest) or priority is Priority.BATCH:
            return Refusal(reason, soonest * (1 + JITTER * chance))
        turn = max(now + soonest, self._promised_until) - now
        if turn > max(LONGEST_RETRY_S, soonest):
            return Refusal(reason, soonest + chance * max(0.0, LONGEST_RETRY_S - soonest))
        self._promised_until = now + turn + 1 / rate
        return Refusal(reason, turn * (1 + JITTER * chance))

    def wait(
        self,
        priority: Priority,
        now: float,
        deliver: Callable[[Slot | Refusal], None],
        among: Set[str] | None = None,
        *,
        begun: bool = False,
    ) -> Waiter | Refusal:
        """Join the line for a slot of one `among`, if it is expected within the longest wait.

        Or whatever is expected, at the head of its class, where the answer has `begun`.
        """
        longest = self._settings.lease.longest_wait_s
        able = sum(among is None or member.id in among for member in self.members)
        if not able:
            return self._refusal(Reason.DRAINED, priority, math.inf, now)
        if able == len(self.members):
            among = None
        expected = self.expected_wait(priority, now, among)
        if expected > longest and not begun:
            rivals = self.line.ahead_of(priority, among)
            if rivals >= self._slots_to_come(priority, now, among):
                self._decisions.waits[self.model, Wait.REFUSED] += 1
                return self._told(Reason.NOT_WORTH_WAITING, priority, expected, now, among)
        waiter = Waiter(priority, now + longest, deliver, among, begun)
        self.line.join(waiter)
        return waiter

    def serve(
        self, now: float, probing: bool, on_release: Callable[[DeploymentGuard], None]
    ) -> None:
        """Hand free slots to those who wait."""
        for priority in Priority:
            while (
                next_served := self._next_served(priority, now, probing, on_release)
            ) is not None:
                waiter, slot = next_served
                self.line.leave(waiter)
                self._decisions.waits[self.model, Wait.SERVED] += 1
                waiter.deliver(slot)

    def expire(self, now: float) -> None:
        """Refuse those who waited in vain: later where the store has slots it was not asked for.

        Those come with its next answer, which a busy process may be late to ask for; but who
        waits is told in the end, whatever the store does.
        """
        for waiter in self.line.overdue(now):
            if not waiter.prolonged and self._slots_to_come(waiter.priority, now, waiter.among):
                waiter.prolonged, waiter.deadline = True, now + ANSWER_S
                continue
            self.line.leave(waiter)
            expected = self.expected_wait(waiter.priority, now, waiter.among)
            self._decisions.waits[self.model, Wait.EXPIRED] += 1
            waiter.deliver(
                self._refusal(Reason.WAITED, waiter.priority, expected, now)
                if waiter.begun  # no client is told, who would come again
                else self._told(Reason.WAITED, waiter.priority, expected, now, waiter.among)
            )

    def _refusal(self, reason: Reason, priority: Priority, expected: float, now: float) -> Refusal:
        """When slots come back; where none do, or few while the store learns: when it has more.

        Where interactive requests want them all, batch has some when those wants are forgotten.
        """
        more_in = self._more_in(now)
        if expected == math.inf:
            lease = self._settings.lease
            unknown = lease.ttl_s if priority is Priority.BATCH else lease.contended_gap_s
            expected = more_in or unknown
        elif any(member.lease.learning for member in self.members):
            expected = max(expected, more_in)
        self._decisions.refusals[self.model, reason] += 1
        return Refusal(reason, expected)

    def _usable(self, among: Set[str] | None) -> list[DeploymentGuard]:
        return [m for m in self.members if m.usable and (among is None or m.id in among)]

    def _more_in(self, now: float) -> float:
        """Seconds until the store may have more; 0 if that is not known."""
        times = [member.lease.more_at for member in self.members if member.usable]
        return max(0.0, min((at for at in times if at is not None), default=now) - now)

    def _slots_to_come(self, priority: Priority, now: float, among: Set[str] | None) -> int:
        """Slots that the store may still grant within a moment, to requests of that priority."""
        for_batch = priority is Priority.BATCH
        return sum(m.lease.may_grow_by(now, for_batch=for_batch) for m in self._usable(among))

    def _next_served(
        self,
        priority: Priority,
        now: float,
        probing: bool,
        on_release: Callable[[DeploymentGuard], None],
    ) -> tuple[Waiter, Slot] | None:
        """The first in the line for whom there is a slot, and that slot."""
        in_vain: Set[str] | None = None  # what the last one wanted: few want different things
        for waiter in self.line.of(priority):
            if in_vain is not None and waiter.among == in_vain:
                continue
            slot = self._any_slot(priority, waiter.among, now, probing, on_release)
            if slot is not None:
                return waiter, slot
            if waiter.among is None:  # there is none at all
                return None
            in_vain = waiter.among
        return None

    def _any_slot(
        self,
        priority: Priority,
        among: Set[str] | None,
        now: float,
        probing: bool,
        on_release: Callable[[DeploymentGuard], None],
    ) -> Slot | None:
        for member in self.ordered(now, probing):
            if member.has_room(now) and (among is None or member.id in among):
                slot = self.take(member, priority, now, on_release)
                if isinstance(slot, Slot):
                    return slot
        return None

    def _by_expectation(
        self, offered: Sequence[DeploymentGuard], now: float
    ) -> Sequence[DeploymentGuard]:
        chance = self._random.random
        return sorted(
            offered, key=lambda member: member.expectation(now) * (1 + TIE * chance())
        )  # fmt: skip


def _awaits_probe(member: DeploymentGuard) -> bool:
    breaker = member.breaker
    return breaker.state is not BreakerState.CLOSED and breaker.ticket_is_unused
