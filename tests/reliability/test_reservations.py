"""Reserved slots: lent while their owners are away, and theirs again within a lease."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from prime_inference.reliability.block_lease import REPLICAS_REMEMBERED_S
from prime_inference.reliability.recall import BEGUN_GRACE_S
from prime_inference.reliability.reserved_slots import ReservedSlot, SharedSlot
from prime_inference.reliability.settings import LeaseSettings
from prime_inference.reliability.slots import Priority, Reason, Refusal, Slot
from tests.reliability.fleet import Fleet, deployment

TTL = LeaseSettings().ttl_s
SLOTS = 8


class Place:
    """A deployment of which `reserved` slots are reserved, behind some replicas."""

    def __init__(self, reserved: int = 4, replicas: int = 1, slots: int = SLOTS) -> None:
        self.fleet = Fleet(deployment("d", slots), replicas=replicas)
        self.shared: list[SharedSlot] = []  # those of serverless requests in flight
        self.ended: list[SharedSlot] = []  # those of requests that had to go
        self.owned: list[ReservedSlot] = []
        self.refusals: list[Refusal] = []
        self.allot(reserved)

    def allot(self, reserved: int) -> None:
        for guard in self.fleet.guards:
            guard.reserved.allot({"d": {"res": reserved}} if reserved else {})
        self.fleet.settle()

    def serverless(
        self,
        replica: int = 0,
        *,
        begun: bool = False,
        priority: Priority = Priority.INTERACTIVE,
    ) -> bool:
        """A request that does not end by itself; False if it is refused."""
        self.fleet.settle()
        slot = self.fleet.guards[replica].admit("d", priority)
        if isinstance(slot, Refusal):
            return False
        assert isinstance(slot, SharedSlot)
        self.shared.append(slot)
        slot.on_recall = self._ender(slot)
        if begun:
            slot.first_token()
        return True

    def _ender(self, slot: SharedSlot) -> Callable[[], None]:
        def end() -> None:
            self.shared.remove(slot)
            self.ended.append(slot)

        return end

    def fill(self, *, begun: bool = False) -> None:
        """Three times as many serverless requests as there are slots, at every replica."""
        for _ in range(12):
            for replica in range(len(self.fleet.guards)):
                for _ in range(3 * SLOTS):
                    self.serverless(replica, begun=begun)
            self.fleet.advance(1.0)

    def owner(self, replica: int = 0) -> str:
        """A request of the owner: served, waiting, or over."""
        reserved = self.fleet.guards[replica].reserved
        slot = reserved.admit("d", "res")
        if slot is not None:
            self.owned.append(slot)
            return "served"
        return "waits" if reserved.wait("res", self._delivered) is not None else "over"

    def owners(self, count: int, replica: int = 0) -> None:
        """So many of them, one after another."""
        for _ in range(count):
            self.owner(replica)
            self.fleet.settle()

    def _delivered(self, result: ReservedSlot | Refusal) -> None:
        if isinstance(result, Refusal):
            self.refusals.append(result)
        else:
            self.owned.append(result)


def test_idle_slots_serve_everybody_but_those_at_hand() -> None:
    place = Place()
    place.fill()
    assert len(place.shared) == SLOTS - 1  # one is kept for each replica, for who comes first
    place.owners(1)
    assert len(place.owned) == 1
    assert not place.ended


def test_a_slot_of_a_reservation_tells_its_pool() -> None:
    place = Place()
    place.owners(1)
    assert place.owned[0].pool == "reserved:res"
    place.serverless()
    assert place.shared[0].pool == "serverless"


def test_a_burst_of_the_owner_has_its_slots_after_one_ask_when_none_is_lent() -> None:
    place = Place()
    assert [place.owner() for _ in range(5)] == ["waits"] * 4 + ["over"]
    place.fleet.settle()
    assert len(place.owned) == 4


def test_who_leaves_the_line_leaves_nothing_behind() -> None:
    place = Place()
    reserved = place.fleet.guard.reserved
    first, second = [reserved.wait("res", place._delivered) for _ in range(2)]
    assert first is not None
    assert second is not None
    assert reserved.leave(second)
    place.fleet.settle()
    assert len(place.owned) == 1
    assert not reserved.leave(first)
    assert not reserved.leave(second)
    assert place.fleet.guard.next_due() > 0
    third = reserved.wait("res", place._delivered)
    assert third is not None
    assert reserved.leave(third)
    assert place.fleet.guard.next_due() > 0
    assert place.fleet.guard._deployments["d"].reserved["res"].waiting == 0


def test_nobody_waits_for_slots_of_a_deployment_that_cannot_serve_the_request() -> None:
    place = Place()
    reserved = place.fleet.guard.reserved
    assert reserved.wait("res", place._delivered, {"another"}) is None
    waiter = reserved.wait("res", place._delivered, {"d", "another"})
    assert waiter is not None
    place.fleet.settle()
    assert [slot.deployment for slot in place.owned] == ["d"]


def test_over_the_reservation_nobody_waits() -> None:
    place = Place()
    place.owners(4)
    assert len(place.owned) == 4
    assert place.owner() == "over"
    place.owned.pop().release()
    assert place.owner() == "served"


@pytest.mark.parametrize("begun", [False, True], ids=["before-first-token", "begun"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_owner_has_lent_slots_back_within_a_lease(begun: bool, replicas: int) -> None:
    place = Place(replicas=replicas)
    place.fill(begun=begun)
    lent = len(place.shared) - (SLOTS - 4)
    assert lent > 0
    told = [place.owner(number % replicas) for number in range(4)]
    assert "over" not in told
    place.fleet.advance(BEGUN_GRACE_S - 0.5)
    assert bool(place.ended) is not begun  # what has begun may still end by itself
    place.fleet.advance(TTL - BEGUN_GRACE_S)
    assert len(place.owned) == 4
    assert len(place.ended) == lent  # and not one more
    assert len(place.shared) == SLOTS - 4


def test_answers_that_end_in_time_are_not_ended() -> None:
    place = Place()
    place.fill(begun=True)
    for _ in range(4):
        place.owner()
    place.fleet.settle()
    for _ in range(3):
        place.fleet.advance(0.5)
        place.shared.pop().release()
    place.fleet.advance(TTL)
    assert len(place.owned) == 4
    assert place.ended == []


def test_the_youngest_has_to_go_first_and_batch_before_all() -> None:
    place = Place(reserved=2)
    while not place.serverless(priority=Priority.BATCH):
        place.fleet.advance(1.0)
    while not place.serverless():
        place.fleet.advance(1.0)
    batch, oldest = place.shared
    place.fill()
    youngest = place.shared[-1]
    place.owners(2)
    place.fleet.advance(TTL)
    assert place.ended == [batch]
    place.allot(3)
    place.owners(1)
    place.fleet.advance(TTL)
    assert place.ended == [batch, youngest]
    assert oldest in place.shared


def test_slots_that_are_wanted_back_go_to_nobody_else() -> None:
    place = Place()
    place.fill()
    for _ in range(4):
        place.owner()
    place.fleet.advance(TTL)
    assert not place.serverless()
    place.shared.pop().release()
    assert place.serverless()


def test_lent_again_when_the_owner_has_been_away_for_two_leases() -> None:
    place = Place()
    place.owners(4)
    place.fill()
    assert len(place.shared) == 4
    for slot in place.owned:
        slot.release()
    place.fill()
    place.fill()
    assert len(place.shared) == SLOTS - 1


def test_what_replicas_have_besides_goes_to_who_needs_it() -> None:
    place = Place(replicas=3, reserved=4)
    place.fleet.advance(TTL)
    for _ in range(4):
        place.owner(replica=0)
        place.fleet.advance(1.0)
    place.fleet.advance(TTL)
    assert len(place.owned) == 4


def test_a_reservation_that_ends_leaves_its_requests_and_frees_the_rest() -> None:
    place = Place()
    place.owners(1)
    place.fill()
    place.allot(0)
    assert place.owner() == "over"
    place.fill()
    assert len(place.shared) == SLOTS - 1
    place.owned.pop().release()
    place.allot(0)
    place.fleet.advance(3.0)
    place.allot(0)
    assert place.fleet.guard._deployments["d"].reserved == {}
    assert type(place.fleet.guard.admit("d")) is Slot


def test_who_waits_when_the_reservation_ends_is_told() -> None:
    place = Place()
    place.fill(begun=True)
    place.owner()
    assert place.owner() == "waits"
    place.allot(0)
    assert [each.reason for each in place.refusals] == [Reason.FULL] * 2


def test_a_dead_replicas_share_comes_back_within_a_lease() -> None:
    place = Place(replicas=2)
    place.owners(4, replica=1)
    place.fleet.advance(TTL / 2)  # one was kept at the other replica
    assert len(place.owned) == 4
    place.fleet.guards.pop()
    place.owned.clear()
    place.owners(1)
    assert not place.owned
    place.fleet.advance(TTL + 3)
    place.owners(4)
    assert len(place.owned) == 4


def test_without_the_store_each_replica_has_what_it_had_of_both_and_one_slot_at_least() -> None:
    place = Place(replicas=2)
    place.owners(2)
    place.fleet.advance(2 * REPLICAS_REMEMBERED_S)
    place.fleet.store_up = False
    place.fleet.advance(TTL + 1)
    assert [place.owner(replica) for replica in (0, 0, 1, 1)] == [
        "over", "over", "served", "over",
    ]  # fmt: skip
    for _ in range(SLOTS):
        place.serverless(0)
        place.serverless(1)
    assert len(place.shared) >= 2
    assert len(place.owned) + len(place.shared) <= SLOTS


def test_a_deployment_that_is_wholly_reserved_serves_others_only_what_is_lent() -> None:
    place = Place(reserved=SLOTS)
    place.fill()
    assert len(place.shared) == SLOTS - 1
    for _ in range(SLOTS):
        place.owner()
    place.fleet.advance(TTL)
    assert (len(place.owned), len(place.shared)) == (SLOTS, 0)
    place.fleet.store_up = False
    place.fleet.advance(TTL + 1)
    assert not place.serverless()


def test_without_reservations_slots_are_plain() -> None:
    fleet = Fleet(deployment("d"))
    slot = fleet.guard.admit("d")
    assert type(slot) is Slot
