"""When to ask the store what, and what its answers change. No I/O: commands out, replies in.

For every command that `due` hands out, exactly one of `accept` and `fail` must follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

from prime_inference.ports.coordination import (
    Beat,
    BlockAsk,
    BlockGrant,
    BreakerReading,
    BreakerRecord,
    BreakerSnapshot,
    BreakerState,
    ProbeAsk,
    ProbeGrant,
    ProbeResult,
    Push,
    Trip,
    Verdict,
)
from prime_inference.reliability.block_lease import BlockLease
from prime_inference.reliability.breaker import Ticket
from prime_inference.reliability.commands import (
    Command,
    LeaseBlocks,
    ReadBreakers,
    Reply,
    ReturnBlocks,
)
from prime_inference.reliability.deployment import DeploymentGuard
from prime_inference.reliability.settings import Settings

AWAY_AFTER_FAILURES = 3  # in a row: one lost message is not an outage
REPEAT_S = 0.25  # what the store did not answer: soon, but not at its pace of failing
KNOWS_NOTHING = -1  # as a version: not even 0, that of an empty store


@dataclass(slots=True)
class _TicketAsk:
    command: ProbeAsk
    first_at: float
    awaited: bool = False


@dataclass(slots=True)
class _Result:
    ticket: Ticket
    send_at: float


class Coordinator:
    """The conversation of one replica with the store."""

    def __init__(
        self,
        replica: str,
        settings: Settings,
        random: Random,
        deployments: Mapping[str, DeploymentGuard],
        sequences: Iterator[int],
        *,
        canary: bool,
    ) -> None:
        self.replica = replica
        self._canary = canary
        self.failures_in_a_row = 0
        self._settings = settings
        self._random = random
        self._deployments = deployments
        self._sequences = sequences
        self._results: dict[ProbeResult, _Result] = {}  # that the store has not answered yet
        self._removed: list[str] = []
        self._publishing: set[str] = set()
        self._publish_at: dict[str, float] = {}
        self._ticket_asks: dict[str, _TicketAsk] = {}
        self._version = KNOWS_NOTHING
        self._reads_behind = 0  # answers in a row that know less than we do
        self._reading = False
        self._told_of_news = False  # by a push, since the last reading began
        self._last_read_at = -math.inf
        self._heard: Beat | None = None  # the last one that was pushed
        self._hears = False  # the beat of the last reading, or a later one
        self._probes = 0

    @property
    def store_is_away(self) -> bool:
        return self.failures_in_a_row >= AWAY_AFTER_FAILURES

    @property
    def idle(self) -> bool:
        """Whether nobody asks for anything on this replica, and nothing is about to change."""
        return all(
            each.lease.resting and each.breaker.state is BreakerState.CLOSED
            for each in self._deployments.values()
        )

    # --- commands ---

    def due(self, now: float) -> list[Command]:
        """Everything to be asked of the store now."""
        commands: list[Command] = []
        if self._removed:  # before the asks: one of them may be for a deployment that is back
            commands.append(self.return_blocks(self._removed))
            self._removed.clear()
        for deployment in self._deployments.values():
            # a canary needs a slot; and without a store the next request would wait in vain
            is_open = deployment.breaker.state is not BreakerState.CLOSED
            if (is_open and self._canary) or self.store_is_away:
                deployment.lease.wake(now)
        asks = self._asks(now)
        for deployment in self._deployments.values():
            if deployment.breaker.state is not BreakerState.CLOSED:
                commands.extend(self._about_breaker(deployment, now))
        if self._read_at() <= now:
            self._reading, self._told_of_news = True, False
            commands.append(ReadBreakers(self._known_version()))
        if asks:
            commands.append(LeaseBlocks(tuple(asks), now))
        for result, state in self._results.items():
            if state.send_at <= now:
                state.send_at = math.inf
                commands.append(result)
        return commands

    def _asks(self, now: float) -> list[BlockAsk]:
        """Asks that are due, and with them those that would be soon: one command for all.

        Models that nobody asks for give their slots up.
        """
        deployments = self._deployments.values()
        leases = [(d, *each) for d in deployments for each in d.leases()]
        if not any(lease.ask_at <= now for _, lease, _ in leases):
            return []
        settings = self._settings.lease
        soon = now + settings.ttl_s * settings.renew_at / 2
        awake = {
            d.model
            for d in deployments
            if not d.may_rest(canary=self._canary) or d.lease.ask_at > soon
        }
        may_rest = not self.store_is_away
        return [
            lease.ask(in_flight, now, rest=may_rest and d.model not in awake)
            for d, lease, in_flight in leases
            if lease.ask_at <= soon
        ]

    def next_due(self, now: float) -> float:
        """When `due` will have something, as far as is known now."""
        if self._removed:
            return -math.inf
        soonest = self._read_at()
        for state in self._results.values():
            soonest = min(soonest, state.send_at)
        for deployment in self._deployments.values():
            soonest = min(soonest, *(lease.ask_at for lease, _ in deployment.leases()))
            breaker = deployment.breaker
            if breaker.state is BreakerState.CLOSED:
                continue
            if breaker.unpublished is not None and deployment.id not in self._publishing:
                soonest = min(soonest, self._publish_at.get(deployment.id, -math.inf))
            if breaker.ticket is not None:
                soonest = min(soonest, breaker.ticket.deadline, breaker.use_ticket_by)
            elif not self._asks_for_ticket(deployment.id) and deployment.has_room(now):
                soonest = min(soonest, breaker.due_at)
        return soonest

    def return_blocks(self, pools: Iterable[str]) -> ReturnBlocks:
        return ReturnBlocks(self.replica, tuple(pools), next(self._sequences))

    def _about_breaker(self, deployment: DeploymentGuard, now: float) -> Iterable[Command]:
        breaker = deployment.breaker
        name = deployment.id
        if (
            breaker.unpublished is not None
            and name not in self._publishing
            and self._publish_at.get(name, -math.inf) <= now
        ):
            self._publishing.add(name)
            yield breaker.unpublished
        unused = breaker.unused_ticket(now)
        if unused is not None:
            self.conclude(unused, Verdict.LOST, now)
        if self._asks_for_ticket(name) or not breaker.probe_is_due(now):
            return
        if not deployment.has_room(now):  # a ticket without a slot keeps others from probing
            return
        if self.store_is_away:
            breaker.probe_alone(self._owner(), now)
        else:
            yield self._ask_for_ticket(name, now)

    def _asks_for_ticket(self, name: str) -> bool:
        ask = self._ticket_asks.get(name)
        return ask is not None and ask.awaited

    def _ask_for_ticket(self, name: str, now: float) -> ProbeAsk:
        """An ask that was not answered is repeated in the same name: it may have been granted."""
        ask = self._ticket_asks.get(name)
        ticket_s = self._settings.breaker.ticket_s
        if ask is None or now >= ask.first_at + ticket_s:
            tickets = self._settings.breaker.tickets
            ask = _TicketAsk(ProbeAsk(name, self._owner(), ticket_s, tickets), first_at=now)
            self._ticket_asks[name] = ask
        ask.awaited = True
        return ask.command

    def _owner(self) -> str:
        self._probes += 1
        return f"{self.replica}:{self._probes}"

    # --- replies ---

    def accept(self, command: Command, reply: Reply, now: float) -> None:
        """The store answered."""
        self.failures_in_a_row = 0
        match command:
            case LeaseBlocks():
                grants = cast("Sequence[BlockGrant]", reply)
                for ask, grant in zip(command.asks, grants, strict=True):
                    lease = self._lease(ask)
                    if lease is not None:
                        lease.accept(ask, grant, command.sent_at, now)
            case ReadBreakers():
                reading = cast("BreakerReading", reply)
                self._reading, self._last_read_at = False, now
                self._hears = self._heard == reading.beat
                if reading.news is not None:
                    self._read(reading.news, now)
            case Trip():
                self._published(command, cast("BreakerRecord", reply), now)
            case ProbeAsk():
                self._answered_for_ticket(command, cast("ProbeGrant", reply), now)
            case ProbeResult():
                self._end(self._results.pop(command).ticket)
                self._follow(cast("BreakerRecord", reply), now)
            case ReturnBlocks():
                pass

    def fail(self, command: Command, now: float) -> None:
        """The store did not answer; whether it acted is unknown."""
        self.failures_in_a_row += 1
        self._version = KNOWS_NOTHING  # it may come back empty
        match command:
            case LeaseBlocks():
                for ask in command.asks:
                    lease = self._lease(ask)
                    if lease is not None:
                        lease.failed(ask, now)
            case ReadBreakers():
                self._reading, self._last_read_at, self._hears = False, now, False
            case ReturnBlocks():
                pass  # the lease ends by itself
            case Trip() | ProbeAsk() | ProbeResult():
                self._breaker_failed(command, now)

    def _lease(self, ask: BlockAsk) -> BlockLease | None:
        deployment = self._deployments.get(ask.pool)
        return None if deployment is None else deployment.lease_of(ask.reservation)

    def _breaker_failed(self, command: Trip | ProbeAsk | ProbeResult, now: float) -> None:
        deployment = self._deployments.get(command.deployment)
        breaker = deployment.breaker if deployment is not None else None
        match command:
            case Trip():
                self._publishing.discard(command.deployment)
                self._publish_at[command.deployment] = now + REPEAT_S
            case ProbeAsk():
                ask = self._ticket_asks.get(command.deployment)
                if ask is not None:
                    ask.awaited = False
                if breaker is not None:
                    breaker.due_at = max(breaker.due_at, now + REPEAT_S)
            case ProbeResult():
                result = self._results.get(command)
                if result is None:  # its answer was here, and could not be taken
                    return
                if now < result.ticket.deadline and not self.store_is_away:
                    result.send_at = now + REPEAT_S
                    return
                del self._results[command]
                if breaker is not None:
                    breaker.ticket_ended(result.ticket)
                    breaker.concluded_alone(result.ticket, command.verdict, now)

    def follow(self, push: Push) -> None:
        """A push: a beat, or a record, at which the store is read.

        What it says of a breaker is not believed: whoever reaches the store can publish, and
        what is not in the store would never be taken back.
        """
        if isinstance(push, Beat):
            self._heard, self._hears = push, True
            return
        deployment = self._deployments.get(push.deployment)
        if deployment is not None and push.epoch > deployment.breaker.epoch:
            self._told_of_news = True

    def _follow(self, record: BreakerRecord, now: float) -> None:
        deployment = self._deployments.get(record.deployment)
        if deployment is not None:
            deployment.breaker.follow(record, now)

    def conclude(self, ticket: Ticket, verdict: Verdict, now: float) -> None:
        """A probe has ended: tell the store, or go by it alone."""
        deployment = self._deployments.get(ticket.deployment)
        if deployment is None:
            return
        if not ticket.shared:
            deployment.breaker.ticket_ended(ticket)
            deployment.breaker.concluded_alone(ticket, verdict, now)
            return
        settings = self._settings.breaker
        result = ProbeResult(
            deployment=ticket.deployment,
            owner=ticket.owner,
            epoch=ticket.epoch,
            verdict=verdict,
            answers=settings.answers_to_close,
            open_time=settings.open_time(self._random.uniform(-1, 1)),
        )
        self._results[result] = _Result(ticket, send_at=now)

    def removed(self, pool: str) -> None:
        """A deployment is gone: its block goes back."""
        self._removed.append(pool)
        self._publishing.discard(pool)
        self._publish_at.pop(pool, None)
        self._ticket_asks.pop(pool, None)

    def push_lost(self) -> None:
        """Nothing is pushed until a beat is heard again."""
        self._heard, self._hears = None, False

    def _read_at(self) -> float:
        """When to read next: soon, unless the beat of the last reading was heard."""
        if self._reading:
            return math.inf
        if self._told_of_news:
            return -math.inf
        settings = self._settings.breaker
        if not self._hears:
            return self._last_read_at + settings.poll_s
        pause = settings.idle_poll_s if self.idle else settings.heard_poll_s
        return self._last_read_at + pause

    def _read(self, snapshot: BreakerSnapshot, now: float) -> None:
        if self._is_from_an_emptied_store(snapshot):
            for deployment in self._deployments.values():
                deployment.breaker.epoch = 0
        self._version = snapshot.version if not self._reads_behind else KNOWS_NOTHING
        known = {record.deployment: record for record in snapshot.records}
        for name, deployment in self._deployments.items():
            record = known.get(name)
            if record is not None:
                deployment.breaker.follow(record, now)
            elif not self._reads_behind:
                deployment.breaker.forgotten(now)

    def _known_version(self) -> int:
        """The version last read; none, if push has told more since: the store may be emptied."""
        return self._version if self._latest_epoch() <= self._version else KNOWS_NOTHING

    def _latest_epoch(self) -> int:
        return max((d.breaker.epoch for d in self._deployments.values()), default=0)

    def _is_from_an_emptied_store(self, snapshot: BreakerSnapshot) -> bool:
        """Whether the store's epochs have begun anew, below those we know.

        Once may be an answer that a push has overtaken; twice in a row is not.
        """
        behind = snapshot.version < self._latest_epoch()
        self._reads_behind = self._reads_behind + 1 if behind else 0
        if self._reads_behind < 2:
            return False
        self._reads_behind = 0
        return True

    def _published(self, trip: Trip, record: BreakerRecord, now: float) -> None:
        self._publishing.discard(trip.deployment)
        self._publish_at.pop(trip.deployment, None)
        if trip.deployment in self._deployments:
            self._deployments[trip.deployment].breaker.published(trip, record, now)

    def _answered_for_ticket(self, ask: ProbeAsk, grant: ProbeGrant, now: float) -> None:
        asked = self._ticket_asks.pop(ask.deployment, None)
        deployment = self._deployments.get(ask.deployment)
        if deployment is None or asked is None:
            return
        if not grant.granted:
            deployment.breaker.ticket_refused(grant.record, now)
            return
        deadline = asked.first_at + ask.ttl_s
        ticket = Ticket(ask.deployment, ask.owner, grant.record.epoch, deadline, shared=True)
        deployment.breaker.take_ticket(ticket, grant.record, now)

    def _end(self, ticket: Ticket) -> None:
        deployment = self._deployments.get(ticket.deployment)
        if deployment is not None:
            deployment.breaker.ticket_ended(ticket)
