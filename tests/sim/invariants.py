"""What must hold at every moment of every simulation.

An attempt is *tainted* from the moment the store has given up the lease it runs under, or if it
was admitted without one (safe capacity, or a newcomer's share of an emptied store). Tainted
attempts are what dead, frozen and cut-off replicas may have in flight beyond a deployment's
slots: at most one block each. All others fit into the slots.
"""

from __future__ import annotations

from collections import Counter

from prime_inference.ports.coordination import NEWCOMERS_FRACTION, BreakerState, Cause
from tests.sim.replica import Replica
from tests.sim.store import SimStore
from tests.sim.traffic import Attempt, Books


class Broken(AssertionError):
    """An invariant does not hold."""


class Invariants:
    def __init__(self, store: SimStore, books: Books, slots: dict[str, int], tickets: int) -> None:
        self.replicas: dict[str, Replica] = {}
        self.store_lost_time = False  # its clock was set forward: leases ended early in it
        self._store = store
        self._books = books
        self._slots = slots
        self._tickets = tickets
        self._incarnation: dict[tuple[str, str], int] = {}  # of the last covered admission
        self._largest_block: Counter[tuple[str, str]] = Counter()
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
                if attempt.replica.name not in leases and not (learning and self._emptied(attempt)):
                    attempt.tainted = True

    def admitted(self, attempt: Attempt) -> None:
        """An attempt has just been given its slot."""
        deployment, replica = attempt.deployment, attempt.replica
        member = replica.guard._deployments[deployment]
        lease = member.lease
        now = replica.clock()
        mine = {a for a in self._books.open[deployment] if a.replica is replica}
        key = replica.name, deployment
        self._largest_block[key] = max(self._largest_block[key], lease.limit(now))
        if now >= lease.valid_until:
            attempt.tainted = True
            self._check(len(mine) <= max(1, lease.safe), "more than the safe capacity", key)
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
        key = attempt.replica.name, attempt.deployment
        known, held = self._store.leases(attempt.deployment).get(attempt.replica.name, (0, 0))
        if known == epoch:
            self._check(mine <= held, "more than the store counts", key)
            self._incarnation[key] = self._store.incarnation
        elif not self._emptied(attempt):
            self._check(self.store_lost_time, "admitted after the lease has ended", key)
            attempt.tainted = True

    def _emptied(self, attempt: Attempt) -> bool:
        """Whether the store has been emptied since it last counted this replica."""
        return self._is_emptied_since(attempt.replica.name, attempt.deployment)

    def _is_emptied_since(self, replica: str, deployment: str) -> bool:
        return self._incarnation.get((replica, deployment), 0) != self._store.incarnation

    def _fits(self, deployment: str) -> None:
        attempts = self._books.open[deployment]
        for attempt in attempts:
            member = attempt.replica.guard._deployments.get(deployment)
            at_rest = member is not None and member.lease.resting
            self._check(not at_rest, "a replica at rest has requests in flight", deployment)
        tainted = Counter(a.replica.name for a in attempts if a.tainted)
        slots = self._slots[deployment]
        # newcomers to an emptied store, while others may come back; each time it is emptied
        allowance = self._store.incarnation * max(1, slots // NEWCOMERS_FRACTION)
        whole = len(attempts) - tainted.total()
        self._check(whole <= slots + allowance, f"{whole} in flight on {slots} slots", deployment)
        for name, count in tainted.items():
            block = self._largest_block[name, deployment]
            self._check(count <= block, "a lapsed replica has more than one block", name)

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
            lease, known = member.lease, leases.get(name, (None, 0))[0]
            unlearned = self._store.has_to_learn and self._is_emptied_since(name, deployment)
            if replica.clock() < lease.valid_until and (known == lease.epoch or unlearned):
                total += lease.granted
        allowance = self._store.incarnation * max(1, self._slots[deployment] // NEWCOMERS_FRACTION)
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
