"""The breaker of one deployment, as one replica sees it.

It opens on the replica's own evidence at once, and follows what the store says. Every method
takes the time; docs/reliability.md, "Breakers", has the states and the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from prime_inference.ports.coordination import (
    BreakerRecord,
    BreakerState,
    Cause,
    Trip,
    Verdict,
)
from prime_inference.reliability.decisions import BreakerChange
from prime_inference.reliability.settings import BreakerSettings
from prime_inference.reliability.window import OutcomeWindow

UNUSED_TICKET_S = 1.0  # a ticket that no request came for goes back: another replica has traffic
ASK_AGAIN_S = 0.5  # after a ticket was refused: others are probing, and a change is pushed anyway


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to send one probe. `shared` tickets come from the store."""

    deployment: str
    owner: str
    epoch: int
    deadline: float
    shared: bool


class Breaker:
    """State, evidence and the way back of one deployment's breaker."""

    def __init__(
        self,
        deployment: str,
        settings: BreakerSettings,
        random: Random,
        changed: Callable[[BreakerChange], None] | None = None,
    ) -> None:
        self.deployment = deployment
        self.state = BreakerState.CLOSED
        self.epoch = 0  # of the last record followed
        self.generation = 0  # grows with every opening and closing, known to the store or not
        self.cause = Cause.CONSECUTIVE
        self.opened_at = -math.inf  # when it last left closed
        self.unpublished: Trip | None = None  # opened here, and the store does not know yet
        self.ticket: Ticket | None = None  # held by this replica
        self.use_ticket_by = math.inf  # of a ticket that no probe was sent on yet
        self.due_at = math.inf  # when a probe may be asked for
        self._changed = changed
        self._settings = settings
        self._random = random
        self._window = OutcomeWindow(settings.window_s)
        self._in_a_row = 0
        self._unreached_in_a_row = 0
        self._answers = 0  # of probes on local tickets
        self._trips = 0
        self._outdated = -1  # the epoch up to which records are of an address that it left

    # --- evidence ---

    def answered(self, now: float) -> None:
        """An attempt gave a whole answer."""
        self._in_a_row = self._unreached_in_a_row = 0
        self._window.answered(now)

    def failed(self, now: float, rate_may_eject: bool, *, reached: bool = True) -> None:
        """An attempt failed. `rate_may_eject`: statistics may take another one from the pool."""
        self._in_a_row += 1
        self._unreached_in_a_row = 0 if reached else self._unreached_in_a_row + 1
        self._window.failed(now)
        if self.state is not BreakerState.CLOSED:
            return
        if self._unreached_in_a_row >= self._settings.consecutive_failures:
            self._trip(Cause.UNREACHABLE, now)
        elif self._in_a_row >= self._settings.consecutive_failures:
            self._trip(Cause.CONSECUTIVE, now)
        elif rate_may_eject and self._rate_is_bad(now):
            self._trip(Cause.RATE, now)

    def failure_rate(self, now: float) -> float:
        """Share of failures within the window; 0 without any attempt."""
        answered, failed = self._window.totals(now)
        return failed / (answered + failed) if failed else 0.0

    def _rate_is_bad(self, now: float) -> bool:
        answered, failed = self._window.totals(now)
        total = answered + failed
        return total >= self._settings.least_calls and failed >= self._settings.failure_rate * total

    def _trip(self, cause: Cause, now: float) -> None:
        open_time = self._settings.open_time(self._random.uniform(-1, 1))
        self.unpublished = Trip(self.deployment, self.epoch, cause, open_time)
        self.cause = cause
        self._outdated = -1
        self._trips += 1
        self._open_locally(now)

    def _open_locally(self, now: float) -> None:
        settings = self._settings
        if self.state is BreakerState.CLOSED:
            self.opened_at = now
        self._enter(BreakerState.OPEN)
        self.generation += 1
        self._answers = 0
        doubled = settings.open_s * 2 ** min(self._trips - 1, 20)
        jitter = 1 + settings.open_jitter * self._random.uniform(-1, 1)
        self.due_at = now + jitter * min(doubled, settings.open_cap_s)

    def _enter(self, state: BreakerState) -> None:
        before, self.state = self.state, state
        if state is not before and self._changed is not None:
            self._changed(BreakerChange(self.deployment, before, state, self.cause))

    def moved(self) -> None:
        """It is at another address: whatever is known, here or to the store, is of the old one."""
        self._close()
        self._trips = 0
        self._outdated = self.epoch

    # --- what the store says ---

    def follow(self, record: BreakerRecord, now: float) -> None:
        """Take over a record, unless it is older than what is known.

        A closed record of the known epoch does not close what was opened here since.
        """
        if record.epoch < self.epoch or record.epoch <= self._outdated:
            return
        news = record.epoch > self.epoch
        self.epoch = record.epoch
        if record.state is BreakerState.CLOSED:
            if news and self.state is not BreakerState.CLOSED:
                self._close()
            return
        if not news and self.state is record.state and self.unpublished is None:
            return  # told again, by push and by poll
        if self.state is BreakerState.CLOSED:
            self.generation += 1
            self.opened_at = now
        self.cause = record.cause
        self._enter(record.state)
        self.unpublished = None
        self._trips = max(1, record.trips)
        self.due_at = now + record.remaining_s if record.state is BreakerState.OPEN else now
        if self.ticket is not None and self.ticket.epoch != self.epoch:
            self.ticket_ended(self.ticket)

    def published(self, trip: Trip, record: BreakerRecord, now: float) -> None:
        """The store's answer to a trip: it opened, or it knew better."""
        if self.unpublished is trip:
            self.unpublished = None
        if record.epoch < self.epoch:
            return
        if record.state is BreakerState.CLOSED:
            # our evidence is from an epoch that others have opened and closed since
            self.epoch = record.epoch
            self._close()
        else:
            self.follow(record, now)

    def forgotten(self, now: float) -> None:
        """The store knows nothing of this deployment: it was emptied. Tell it what we know."""
        self.epoch = 0
        if self.state is BreakerState.CLOSED or self.unpublished is not None:
            return
        open_time = self._settings.open_time(self._random.uniform(-1, 1))
        self.unpublished = Trip(self.deployment, 0, self.cause, open_time)
        self._enter(BreakerState.OPEN)

    def _close(self) -> None:
        self._enter(BreakerState.CLOSED)
        self.generation += 1
        self.unpublished = None
        self.ticket = None
        self.use_ticket_by = math.inf
        self.due_at = math.inf
        self._in_a_row = self._unreached_in_a_row = 0
        self._answers = 0
        self._window.clear()

    # --- the way back ---

    def probe_is_due(self, now: float) -> bool:
        """Whether it is time to ask for a ticket."""
        if self.ticket is not None and now >= self.ticket.deadline:
            self.ticket_ended(self.ticket)
        return self.state is not BreakerState.CLOSED and self.ticket is None and now >= self.due_at

    def take_ticket(self, ticket: Ticket, record: BreakerRecord | None, now: float) -> None:
        """A ticket was granted; `record` is what the store said with it."""
        if record is not None:
            self.follow(record, now)
        if self.state is not BreakerState.CLOSED and ticket.epoch == self.epoch:
            self.ticket = ticket
            self.use_ticket_by = now + UNUSED_TICKET_S

    def ticket_refused(self, record: BreakerRecord, now: float) -> None:
        """Others are probing, or it is not time yet."""
        self.follow(record, now)
        self.due_at = max(self.due_at, now + ASK_AGAIN_S)

    def probe_alone(self, owner: str, now: float) -> None:
        """The store is away: issue a ticket of our own."""
        deadline = now + self._settings.ticket_s
        self.take_ticket(Ticket(self.deployment, owner, self.epoch, deadline, False), None, now)

    @property
    def ticket_is_unused(self) -> bool:
        return self.ticket is not None and self.use_ticket_by != math.inf

    def use_ticket(self) -> Ticket | None:
        """The ticket, for the probe that is sent now; None if there is none or it is in use."""
        if not self.ticket_is_unused:
            return None
        self.use_ticket_by = math.inf
        return self.ticket

    def unused_ticket(self, now: float) -> Ticket | None:
        """The ticket, if nobody came for it in time: to be concluded as lost.

        Others, who ask every `ASK_AGAIN_S`, are next.
        """
        if now < self.use_ticket_by:
            return None
        self.due_at = max(self.due_at, now + 2 * ASK_AGAIN_S)
        return self.use_ticket()

    def ticket_ended(self, ticket: Ticket) -> None:
        """Its probe has told what it had to tell."""
        if self.ticket is ticket:
            self.ticket = None
            self.use_ticket_by = math.inf

    def concluded_alone(self, ticket: Ticket, verdict: Verdict, now: float) -> None:
        """The end of a probe of which the store cannot be told."""
        if self.state is BreakerState.CLOSED or ticket.epoch != self.epoch:
            return
        self.due_at = now
        if verdict is Verdict.FAILED:
            self._trips += 1
            self._open_locally(now)
        elif verdict is Verdict.ANSWERED:
            self._answers += 1
            if self._answers >= self._settings.answers_to_close:
                self._close()
