"""Reservations against a model, whatever owners, others and replicas do."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.reliability.test_reservations import TTL, Place

SLOTS = 6
RESERVED = 3
STALE_S = TTL / 3 + 1  # a replica's word on what it needs is at most so old


class Reservations(RuleBasedStateMachine):
    """The model: what is in flight where, and how much the owner has needed lately."""

    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas: int) -> None:
        self.place = Place(RESERVED, replicas, SLOTS)
        self.homes: dict[object, int] = {}  # slot -> replica
        self.waiting = 0
        self.needs: list[tuple[float, int]] = []
        self.dead: set[int] = set()
        self.lost: list[tuple[float, int]] = []  # when a replica died, with how many of the owner's

    @property
    def now(self) -> float:
        return self.place.fleet.clock.now

    def note(self) -> None:
        place = self.place
        for slot in [*place.owned, *place.shared]:
            self.homes.setdefault(slot, self.turn)
        self.waiting = sum(
            len(line) for guard in self.place.fleet.guards for line in guard.reserved.lines.values()
        )
        self.needs.append((self.now, len(place.owned) + self.waiting))

    turn = 0

    def alive(self, number: int) -> int:
        count = len(self.place.fleet.guards)
        self.turn = number % count
        return self.turn

    @rule(number=st.integers(0, 9))
    def owner(self, number: int) -> None:
        told = self.place.owner(self.alive(number))
        if told == "over":
            lately = [need for when, need in self.needs if when >= self.now - STALE_S]
            gone = sum(count for when, count in self.lost if when >= self.now - TTL - STALE_S)
            assert max(lately, default=0) + gone >= RESERVED, "refused within the reservation"
        self.note()

    @rule(number=st.integers(0, 9), begun=st.booleans(), count=st.integers(1, 8))
    def others(self, number: int, begun: bool, count: int) -> None:
        for _ in range(count):
            self.place.serverless(self.alive(number), begun=begun)
        self.note()

    @rule(seconds=st.sampled_from([0.01, 0.3, 1, 4, 25]))
    def time(self, seconds: float) -> None:
        self.place.fleet.advance(seconds)
        self.note()

    @precondition(lambda self: self.place.owned)
    @rule(number=st.integers(0, 9))
    def owner_ends(self, number: int) -> None:
        self.place.owned.pop(number % len(self.place.owned)).release()
        self.note()

    @precondition(lambda self: self.place.shared)
    @rule(number=st.integers(0, 9))
    def other_ends(self, number: int) -> None:
        self.place.shared.pop(number % len(self.place.shared)).release()
        self.note()

    @precondition(lambda self: len(self.place.fleet.guards) > 1)
    @rule()
    def replica_dies(self) -> None:
        """Its requests end with it; the store hears nothing."""
        place = self.place
        gone = place.fleet.guards.pop()
        mine = {id(member) for member in gone._deployments.values()}
        before = len(place.owned)
        place.owned = [slot for slot in place.owned if id(slot._deployment) not in mine]
        place.shared = [slot for slot in place.shared if id(slot._deployment) not in mine]
        waiting = sum(len(line) for line in gone.reserved.lines.values())
        self.lost.append((self.now, before - len(place.owned) + waiting + RESERVED))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if hasattr(self, "place"):
            place = self.place
            assert len(place.owned) <= RESERVED
            assert len(place.owned) + len(place.shared) <= SLOTS

    def teardown(self) -> None:
        """Whatever has happened: the owner comes, and has all slots within a lease.

        He who is told that they are all in use asks again after the second he was told.
        """
        if not hasattr(self, "place"):
            return
        place = self.place
        if self.lost:
            place.fleet.advance(TTL + 1)  # what the dead had is theirs for so long
        for _ in range(int(TTL)):
            self.note()
            for number in range(RESERVED - len(place.owned) - self.waiting):
                place.owner(number % len(place.fleet.guards))
            place.fleet.advance(1.0)
        assert len(place.owned) == RESERVED, "the owner has not got its slots"


def test_the_owner_has_its_slots_within_a_lease_whatever_happens() -> None:
    run_state_machine_as_test(
        Reservations, settings=settings(max_examples=40, stateful_step_count=20, deadline=None)
    )
