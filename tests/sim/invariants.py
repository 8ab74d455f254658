"""What must hold at every moment of every simulation.

An attempt is *tainted* from the moment the store has given up the lease it runs under, or if it
was admitted without one (safe capacity, or a newcomer's share of an emptied store). Tainted
attempts are what dead, frozen and cut-off replicas may have in flight beyond a deployment's
slots: at most one block each. All others fit into the slots.
"""

from __future__ import annotations

from collections import Counter

from prime_inference.domain.reservations import Allotment
from prime_inference.ports.coordination import NEWCOMERS_FRACTION, BreakerState, Cause
from prime_inference.reliability.reserved_lease import ReservedLease
from tests.sim.replica import Replica
from tests.sim.store import SimStore
from tests.sim.traffic import Attempt, Books


class Broken(AssertionError):
    """An invariant does not hold."""


class Invariants:
    def __init__(
        self,
        store: SimStore,
        books: Books,
        slots: dict[str, int],
        tickets: int,
        allotment: Allotment,
    ) -> None:
        self._allotment = allotment
        self.replicas: dict[str, Replica] = {}
        self.only_the_store_fails = False  # no replica dies, freezes, or is cut off alone
        self.store_lost_time = False  # its clock was set forward: leases ended early in it
        self._store = store
        self._books = books
        self._slots = slots
        self._tickets = tickets
        self._incarnation: dict[tuple[str, str, str], int] = {}  # of the last covered admission
        self._largest_block: Counter[tuple[str, str, str]] = Counter()
        store.before_lease = self.taint_lapsed
        books.admitted = self.admitted

    def taint_lapsed(self) -> None:
        """Mark what runs under leases that the store has given up.

        While an emptied store learns, leases of the time before are not given up: it leaves room.
        """
        for deployment, attempts in self._books.open.items():
            leases = self._store.leases(deployment)
            learning = self._store.has_to_learn and not self.store_lost_time
            for attempt in attempts:
                if _block(attempt) not in leases and not (learning and self._emptied(attempt)):
                    attempt.tainted = True

    def admitted(self, attempt: Attempt) -> None:
        """An attempt has just been given its slot."""
        deployment, replica = attempt.deployment, attempt.replica
        member = replica.guard._deployments[deployment]
        lease = member.lease_of(attempt.reservation)
        assert lease is not None
        now = replica.clock()
        attempt.untold = not lease.epoch
        mine = [a for a in self._books.open[deployment] if _key(a) == _key(attempt)]
        key = _key(attempt)
        self._largest_block[key] = max(self._largest_block[key], lease.limit(now))
        if now >= lease.valid_until:
            attempt.tainted = True
            self._check(len(mine) <= lease.safe, "more than the safe capacity", key)
        else:
            self._check(len(mine) <= lease.granted, "more than the block", key)
            self._covered(attempt, lease.epoch, len(mine))
        self.taint_lapsed()
        self._blocks_fit(deployment)
        self._fits(deployment)
        self._probes(deployment)

    def offered(self, replica: Replica, model: str, names: list[str]) -> None:
        """A replica has listed candidates."""
        members = [m for m in replica.guard._deployments.values() if m.model == model]
        members = [m for m in members if m.id not in replica.guard._draining]
        self._check(bool(names) or not members, "no candidate is offered", model)
        left_out = [
            m
            for m in members
            if m.id not in names
            and m.breaker.state is not BreakerState.CLOSED
            and m.breaker.cause is Cause.RATE
        ]
        self._check(len(left_out) <= len(members) // 2, "statistics ejected too many", model)

    def _covered(self, attempt: Attempt, epoch: int, mine: int) -> None:
        """A lease that is valid here is counted in the store, or the store has been emptied."""
        key = _key(attempt)
        known, held = self._store.leases(attempt.deployment).get(_block(attempt), (0, 0))
        if known == epoch:
            self._check(mine <= held, "more than the store counts", key)
            self._incarnation[key] = self._store.incarnation
        elif not self._emptied(attempt):
            self._check(self.store_lost_time, "admitted after the lease has ended", key)
            attempt.tainted = True

    def _emptied(self, attempt: Attempt) -> bool:
        """Whether the store has been emptied since it last counted this replica."""
        return self._is_emptied_since(*_key(attempt))

    def _is_emptied_since(self, replica: str, deployment: str, reservation: str) -> bool:
        known = self._incarnation.get((replica, deployment, reservation), 0)
        return known != self._store.incarnation

    def _fits(self, deployment: str) -> None:
        attempts = self._books.open[deployment]
        for attempt in attempts:
            member = attempt.replica.guard._deployments.get(deployment)
            at_rest = member is not None and member.lease.resting and not attempt.reservation
            self._check(not at_rest, "a replica at rest has requests in flight", deployment)
        tainted = Counter(_key(attempt) for attempt in attempts if attempt.tainted)
        whole = [attempt for attempt in attempts if not attempt.tainted]
        # newcomers to an emptied store, while others may come back; each time it is emptied
        parts = self._allotment.get(deployment, {})
        quarters = {name: max(1, slots // NEWCOMERS_FRACTION) for name, slots in parts.items()}
        slots = self._slots[deployment]
        own = slots - sum(parts.values())
        if self.only_the_store_fails and own >= len(self.replicas):
            told = sum(not attempt.untold for attempt in attempts)
            self._check(told <= slots, f"{told} on {slots} slots, and all live", deployment)
        most = slots + self._store.incarnation * self._quarters(deployment)
        self._check(len(whole) <= most, f"{len(whole)} in flight on {slots} slots", deployment)
        for name, part in parts.items():
            own = sum(attempt.reservation == name for attempt in whole)
            most = part + self._store.incarnation * quarters[name]
            self._check(own <= most, f"{own} in flight on {part} reserved slots", deployment)
        for key, count in tainted.items():
            block = self._largest_block[key]
            self._check(count <= block, "a lapsed replica has more than one block", key)

    def _quarters(self, deployment: str) -> int:
        """What newcomers of all kinds may have of a store that learns."""
        parts = self._allotment.get(deployment, {}).values()
        return sum(
            max(1, slots // NEWCOMERS_FRACTION) for slots in (self._slots[deployment], *parts)
        )

    def _blocks_fit(self, deployment: str) -> None:
        """Valid blocks that the store counts, or has to learn of, are no more than the slots."""
        if self.store_lost_time:
            return
        leases = self._store.leases(deployment)
        total = 0
        for name, replica in self.replicas.items():
            member = replica.guard._deployments.get(deployment)
            if not replica.alive or member is None:
                continue
            for lease, _ in member.leases():
                own = lease.reservation if isinstance(lease, ReservedLease) else ""
                known = leases.get(f"{name}|{own}" if own else name, (None, 0))[0]
                emptied = self._is_emptied_since(name, deployment, own)
                unlearned = self._store.has_to_learn and emptied
                if replica.clock() < lease.valid_until and (known == lease.epoch or unlearned):
                    total += lease.granted
        allowance = self._store.incarnation * self._quarters(deployment)
        fits = total <= self._slots[deployment] + allowance
        self._check(fits, f"blocks of {total} slots", deployment)

    def _probes(self, deployment: str) -> None:
        live = [
            attempt
            for attempt in self._books.probes[deployment]
            if attempt.replica.running
            and attempt.slot.ticket is not None
            and attempt.slot.ticket.shared
            and attempt.replica.clock() < attempt.slot.ticket.deadline
        ]
        epochs = Counter(a.slot.ticket.epoch for a in live if a.slot.ticket is not None)
        for count in epochs.values():
            self._check(count <= self._tickets, "a probe storm", deployment)

    @staticmethod
    def _check(holds: bool, what: str, where: object) -> None:
        if not holds:
            raise Broken(f"{what} ({where})")


def _key(attempt: Attempt) -> tuple[str, str, str]:
    return attempt.replica.name, attempt.deployment, attempt.reservation


def _block(attempt: Attempt) -> str:
    """Its lease's name in the store."""
    name = attempt.replica.name
    return f"{name}|{attempt.reservation}" if attempt.reservation else name
