"""The simulation holds, replays, and notices defects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from prime_inference.adapters.memory import block_leases
from prime_inference.adapters.memory.block_leases import BlockPool
from prime_inference.adapters.memory.breaker_table import BreakerTable
from prime_inference.ports.coordination import (
    BlockAsk,
    BlockGrant,
    ProbeAsk,
    ProbeGrant,
)
from prime_inference.reliability import coordinator, ejection
from prime_inference.reliability.block_lease import BlockLease
from prime_inference.reliability.deployment import DeploymentGuard
from prime_inference.reliability.model_pool import ModelPool
from prime_inference.reliability.reserved_lease import ReservedLease
from prime_inference.reliability.slots import Priority, Slot
from prime_inference.reliability.waiting import Waiter, WaitingLine
from tests.sim import store
from tests.sim.simulation import Simulation

SEEDS = range(12)  # `make sim` runs hundreds
ENOUGH_SEEDS = range(120)

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_holds(seed: int) -> None:
    Simulation(seed).run()


def test_a_seed_replays() -> None:
    one, other = Simulation(7), Simulation(7)
    one.run()
    other.run()
    assert one.log == other.log
    assert one.books.ends == other.books.ends
    assert [r.calls for r in one.replicas] == [r.calls for r in other.replicas]


def _forgets_what_is_in_flight(patch: Patch) -> None:
    lease = BlockPool.lease

    def forgetful(self: BlockPool, ask: BlockAsk, now: float) -> BlockGrant:
        grant = lease(self, ask, now)
        self._blocks[ask.block].held = grant.granted
        return grant

    patch.setattr(BlockPool, "lease", forgetful)


def _obeys_old_asks(patch: Patch) -> None:
    lease = BlockPool.lease

    def obedient(self: BlockPool, ask: BlockAsk, now: float) -> BlockGrant:
        if ask.holder in self._blocks:
            block = self._blocks[ask.holder]
            object.__setattr__(block.ask, "sequence", ask.sequence - 1)
        return lease(self, ask, now)

    patch.setattr(BlockPool, "lease", obedient)


def _does_not_learn(patch: Patch) -> None:
    patch.setattr(store, "LEARNING_S", 0.0)


def _lets_leases_end_late(patch: Patch) -> None:
    accept = BlockLease.accept

    def late(
        self: BlockLease, ask: BlockAsk, grant: BlockGrant, sent_at: float, now: float
    ) -> None:
        accept(self, ask, grant, sent_at + 1.5, now)  # the store waits out less

    patch.setattr(BlockLease, "accept", late)


def _gives_any_number_of_tickets(patch: Patch) -> None:
    probe = BreakerTable.probe

    def generous(self: BreakerTable, ask: ProbeAsk, now: float) -> ProbeGrant:
        return probe(self, ProbeAsk(ask.deployment, ask.owner, ask.ttl_s, 10**6), now)

    patch.setattr(BreakerTable, "probe", generous)


def _keeps_tickets_of_the_dead(patch: Patch) -> None:
    probe = BreakerTable.probe

    def patient(self: BreakerTable, ask: ProbeAsk, now: float) -> ProbeGrant:
        return probe(self, ProbeAsk(ask.deployment, ask.owner, math.inf, ask.tickets), now)

    patch.setattr(BreakerTable, "probe", patient)


def _reads_an_empty_store_as_unchanged(patch: Patch) -> None:
    patch.setattr(coordinator, "KNOWS_NOTHING", 0)


def _gives_slots_back_twice(patch: Patch) -> None:
    release = Slot.release

    def twice(self: Slot) -> None:
        self._released = False
        release(self)

    patch.setattr(Slot, "release", twice)


def _leaks_slots_of_clients_that_leave(patch: Patch) -> None:
    release = Slot.release

    def leaky(self: Slot) -> None:
        if self._recorded:
            release(self)

    patch.setattr(Slot, "release", leaky)


def _rests_under_long_answers(patch: Patch) -> None:
    def careless(self: DeploymentGuard, *, canary: bool) -> bool:
        return self.lease.resting or (self.lease.ready and self.lease.unused)

    patch.setattr(DeploymentGuard, "may_rest", careless)
    ask = BlockLease.ask

    def silent(self: BlockLease, in_flight: int, now: float, *, rest: bool = False) -> BlockAsk:
        return ask(self, 0 if rest else in_flight, now, rest=rest)

    patch.setattr(BlockLease, "ask", silent)


def _keeps_slots_at_rest(patch: Patch) -> None:
    accept = BlockLease.accept

    def greedy(
        self: BlockLease, ask: BlockAsk, grant: BlockGrant, sent_at: float, now: float
    ) -> None:
        accept(self, ask, grant, sent_at, now)
        if self.resting:
            self.granted = 1

    patch.setattr(BlockLease, "accept", greedy)


def _ejects_the_last(patch: Patch) -> None:
    patch.setattr(ejection, "sorted", lambda pool, key: (), raising=False)


def _lends_for_good(patch: Patch) -> None:
    patch.setattr(block_leases, "recall", lambda *anything: 0)


def _gives_owners_any_number(patch: Patch) -> None:
    patch.setattr(block_leases, "slots_of", lambda holdings: 1000)


def _forgets_closed_reservations_with_requests(patch: Patch) -> None:
    patch.setattr(ReservedLease, "at_rest", property(lambda self: True))


def _takes_a_part_that_others_may_have(patch: Patch) -> None:
    patch.setattr(BlockLease, "_safe_capacity", BlockLease._part)


def _takes_its_own_absence_for_the_end_of_leases(patch: Patch) -> None:
    patch.setattr(BlockPool, "_is_awaited", lambda self, block: False)


def _serves_batch_first(patch: Patch) -> None:
    next_served = ModelPool._next_served

    def reversed_(self: ModelPool, priority: Priority, *rest: Any) -> Any:
        other = Priority.INTERACTIVE if priority is Priority.BATCH else Priority.BATCH
        return next_served(self, other, *rest)

    patch.setattr(ModelPool, "_next_served", reversed_)


def _lets_newcomers_go_before_answers_that_have_begun(patch: Patch) -> None:
    join = WaitingLine.join

    def at_the_end(self: WaitingLine, waiter: Waiter) -> None:
        begun, waiter.begun = waiter.begun, False
        join(self, waiter)
        waiter.begun = begun

    patch.setattr(WaitingLine, "join", at_the_end)


DEFECTS: dict[Callable[[Patch], None], int] = {
    _forgets_what_is_in_flight: 265,
    _obeys_old_asks: 8,
    _does_not_learn: 8,
    _lets_leases_end_late: 213,
    _gives_any_number_of_tickets: 8,
    _keeps_tickets_of_the_dead: 8,
    _reads_an_empty_store_as_unchanged: 6,
    _gives_slots_back_twice: 8,
    _leaks_slots_of_clients_that_leave: 213,
    _ejects_the_last: 8,
    _rests_under_long_answers: 106,
    _keeps_slots_at_rest: 8,
    _lends_for_good: 213,
    _gives_owners_any_number: 213,
    _forgets_closed_reservations_with_requests: 633,
    _takes_a_part_that_others_may_have: 4,
    _takes_its_own_absence_for_the_end_of_leases: 88,
    _serves_batch_first: 555,
    _lets_newcomers_go_before_answers_that_have_begun: 60,
}
"""And a seed that notices it, tried before all others: it may change with the code."""


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "seed"), DEFECTS.items())
def test_a_planted_defect_is_noticed(
    plant: Callable[[Patch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for tried in (seed, *ENOUGH_SEEDS):
        try:
            Simulation(tried).run()
        except (AssertionError, LookupError):
            return
    raise AssertionError("no seed notices")
