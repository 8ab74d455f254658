"""The reserved slots of all deployments on one replica: who has them, who waits for one.

A part of `Guard`; docs/reservations.md has the rules.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from prime_inference.domain.reservations import Allotment
from prime_inference.ports.clock import Clock
from prime_inference.reliability.deployment import DeploymentGuard
from prime_inference.reliability.recall import Recall
from prime_inference.reliability.reserved_lease import ReservedLease
from prime_inference.reliability.reserved_slots import ReservedSlot
from prime_inference.reliability.settings import Settings
from prime_inference.reliability.slots import Reason, Refusal

Released = Callable[[DeploymentGuard], None]


@dataclass(slots=True, eq=False)
class ReservedWaiter:
    """A request that waits for a slot of its reservation. `deliver` is called once at most."""

    lease: ReservedLease  # that was asked to grow for it
    deadline: float
    deliver: Callable[[ReservedSlot | Refusal], None]
    among: Set[str] | None  # the deployments that can serve it; None: every one
    in_vain: list[ReservedLease] = field(default_factory=list)  # where nothing was to come


@dataclass(frozen=True, slots=True)
class ReservedView:
    """A reservation's part of a deployment, as one replica sees it."""

    deployment: str
    reservation: str
    slots: int
    in_flight: int
    waiting: int


class ReservedCapacity:
    """`deployments` are all of the replica, also those that drain."""

    def __init__(
        self,
        replica: str,
        settings: Settings,
        clock: Clock,
        deployments: Mapping[str, DeploymentGuard],
        sequences: Iterator[int],
        on_release: Released,
        wake: Callable[[], None],
    ) -> None:
        self._replica = replica
        self._settings = settings.lease
        self._clock = clock
        self._deployments = deployments
        self._sequences = sequences
        self._on_release = on_release
        self._wake = wake
        self.recalled: Counter[str] = Counter()  # requests that had to go, by deployment
        self.lines: dict[str, deque[ReservedWaiter]] = defaultdict(deque)  # who waits
        self._begun: Set[str] = frozenset()

    # --- whose slots

    def allot(self, allotment: Allotment, begun: Iterable[str] = ()) -> None:
        """So many slots of each deployment are each reservation's, until told otherwise.

        `begun` are the reservations that are active, also those for which there is no slot.
        """
        self._begun = {*begun, *(name for parts in allotment.values() for name in parts)}
        for name, member in self._deployments.items():
            self._allot_member(member, allotment.get(name, {}))
        self._wake()

    def _allot_member(self, member: DeploymentGuard, parts: Mapping[str, int]) -> None:
        for reservation, slots in parts.items():
            lease = member.reserved.get(reservation)
            if lease is None:
                lease = member.reserved[reservation] = ReservedLease(
                    member.id, reservation, self._replica, slots, member.spec.slots,
                    self._settings, self._sequences,
                )  # fmt: skip
            lease.reopen()
            lease.deployment_slots = member.spec.slots
            if lease.capacity != slots:
                lease.resize(slots)
        for reservation in member.reserved.keys() - parts.keys():
            self._close(member, reservation)
        member.lease.reserve(sum(parts.values()))
        if member.reserved and member.shared is None:
            member.shared, member.recall = {}, Recall()
        elif not member.reserved and member.shared is not None:
            member.shared = member.recall = None

    @staticmethod
    def _close(member: DeploymentGuard, reservation: str) -> None:
        """It is over: its requests go on, and when the last has ended its slots are free."""
        lease = member.reserved[reservation]
        if lease.closing and lease.at_rest:
            del member.reserved[reservation]
        elif lease.in_flight == 0 or not lease.closing:
            lease.close()
            lease.confirm(-math.inf)  # the store hears of it at once

    # --- the request's path

    def has(self, deployment: str, reservation: str) -> bool:
        """Whether slots of that deployment are the reservation's."""
        member = self._deployments.get(deployment)
        return member is not None and reservation in member.reserved

    def knows(self, reservation: str) -> bool:
        """Whether it has begun here: its slots are its own, if there are any."""
        return reservation in self._begun

    def has_slots(self, reservation: str) -> bool:
        """Whether any deployment has slots for it."""
        return any(reservation in member.reserved for member in self._deployments.values())

    def admit(self, deployment: str, reservation: str) -> ReservedSlot | None:
        """A slot of the reservation on that deployment at once, or None."""
        member = self._deployments.get(deployment)
        if member is None:
            return None
        now = self._clock()
        slot = member.take_reserved(reservation, now, self._on_release)
        if any(lease.ask_at <= now for lease in member.reserved.values()):
            self._wake()
        return slot

    def wait(
        self,
        reservation: str,
        deliver: Callable[[ReservedSlot | Refusal], None],
        among: Set[str] | None = None,
    ) -> ReservedWaiter | None:
        """Wait for a slot that is the reservation's and lent, or not asked for yet.

        Of deployments `among`, if given. None: all are in use by those whose they are.
        """
        now = self._clock()
        leases = [each.reserved[reservation] for each in self._usable(reservation, among)]
        lease = _most_to_come(leases, now)
        if lease is None:
            return None
        waiter = ReservedWaiter(lease, now + self._settings.ttl_s, deliver, among)
        self.lines[reservation].append(waiter)
        lease.waiting += 1
        lease.needs_more(now)
        self._wake()
        return waiter

    def leave(self, waiter: ReservedWaiter) -> bool:
        """Wait no longer; False if `deliver` was called already."""
        line = self.lines.get(waiter.lease.reservation, ())
        if waiter not in line:
            return False
        self.lines[waiter.lease.reservation].remove(waiter)
        waiter.lease.waiting -= 1
        return True

    # --- what time and the store's answers change

    def attend(self, now: float, *, answered: bool = False) -> None:
        """Time has passed, or the store has answered."""
        for member in list(self._deployments.values()):
            if member.recall is None:
                continue
            if answered:
                self.recalled[member.id] += member.recall.carry_out(member, now)
            else:
                member.recall.wait(member, now)
        if self.lines:
            self.serve(now)

    def serve(self, now: float) -> None:
        """Hand out what is free; refuse whom nothing is coming for."""
        for reservation, line in list(self.lines.items()):
            while (served := self._first_served(reservation, line, now)) is not None:
                waiter, slot = served
                self._step_out(line, waiter)
                waiter.deliver(slot)
            while line and line[0].deadline <= now:
                waiter = line[0]
                self._step_out(line, waiter)
                waiter.deliver(Refusal(Reason.WAITED, self._settings.contended_gap_s))
            for waiter in reversed(list(line)):  # first come, first served
                if waiter.lease.to_come(now) < waiter.lease.waiting and waiter in line:
                    self._move(waiter, now)
            if not line:
                self.lines.pop(reservation, None)

    @property
    def next_due(self) -> float:
        """When `serve` and `recall` have something to do, if the store says nothing new."""
        waits = [line[0].deadline for line in self.lines.values() if line]
        recalls = [each.recall.ask_at for each in self._deployments.values() if each.recall]
        return min([*waits, *recalls], default=math.inf)

    def view(self) -> list[ReservedView]:
        """All of them, for metrics."""
        return [
            ReservedView(member.id, name, lease.capacity, lease.in_flight, lease.waiting)
            for member in self._deployments.values()
            for name, lease in member.reserved.items()
        ]

    @property
    def empty(self) -> bool:
        """Whether no slot is reserved, or was and is still in use."""
        return not any(member.reserved for member in self._deployments.values())

    def _move(self, waiter: ReservedWaiter, now: float) -> None:
        """Nothing comes where it waits: let it wait elsewhere, or tell it."""
        reservation = waiter.lease.reservation
        waiter.lease.waiting -= 1
        waiter.in_vain.append(waiter.lease)
        leases = [each.reserved[reservation] for each in self._usable(reservation, waiter.among)]
        lease = _most_to_come([lease for lease in leases if lease not in waiter.in_vain], now)
        if lease is None:
            self.lines[reservation].remove(waiter)
            waiter.deliver(Refusal(Reason.FULL, self._settings.contended_gap_s))
            return
        waiter.lease = lease
        lease.waiting += 1
        lease.needs_more(now)
        self._wake()

    def _usable(self, reservation: str, among: Set[str] | None) -> list[DeploymentGuard]:
        """Those that have slots of it, of `among` if given."""
        return [
            each
            for each in self._deployments.values()
            if reservation in each.reserved and each.usable and (among is None or each.id in among)
        ]

    def _first_served(
        self, reservation: str, line: deque[ReservedWaiter], now: float
    ) -> tuple[ReservedWaiter, ReservedSlot] | None:
        """The first in the line for whom there is a slot, and that slot."""
        for waiter in line:
            for member in self._usable(reservation, waiter.among):
                slot = member.take_reserved(reservation, now, self._on_release)
                if slot is not None:
                    return waiter, slot
        return None

    @staticmethod
    def _step_out(line: deque[ReservedWaiter], waiter: ReservedWaiter) -> None:
        line.remove(waiter)
        waiter.lease.waiting -= 1


def _most_to_come(leases: list[ReservedLease], now: float) -> ReservedLease | None:
    """The lease from which most is to come for one more; None: nothing from any."""
    lease = max(leases, key=lambda each: each.to_come(now, 1) - each.waiting, default=None)
    return lease if lease is not None and lease.to_come(now, 1) > lease.waiting else None
