"""Overflow under a controller, in datacenters in memory."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import Controller
from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.overflow import Overflow, OverflowSettings
from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.controller.scaling import Scaling
from tests.fleet.datacenters import Everywhere, Lists, planned

GLM = find_spec("glm-5.3-gb200")


def revised(revision, model="z-ai/glm-5.3"):
    return replace(GLM, model=replace(GLM.model, id=model, revision=revision))


class Watched:
    """A controller with overflow, and the clock that it has. What says its load has `busy` of
    four slots in use."""

    def __init__(self, *datacenters, gpus=640, budget=640):
        self.datacenters = datacenters
        self.busy = 4
        self.now = 0.0
        self.lists = Lists()
        settings = OverflowSettings(
            full_seconds=60, idle_seconds=600, ready_seconds=300, gpu_budget=budget
        )
        self.controller = Controller(
            datacenters,
            self.lists,
            scaling=Scaling(Overflow(settings), {one.id: gpus for one in datacenters}),
            in_flight=self._in_flight,
            now=lambda: self.now,
            notice_seconds=0.0,
        )

    async def _in_flight(self, found):
        return self.busy

    async def after(self, seconds):
        """Steps until then, and until what follows is done; which deployments are where."""
        for _ in range(4):
            self.now += seconds / 4
            await self.controller.step()
        for _ in range(4):
            await self.controller.step()
        return [one.deployments for one in self.datacenters]


def overflowing(datacenters, lists, in_flight, clock):
    """A controller of one deployment, with GPUs for one more of it."""
    settings = OverflowSettings(full_seconds=60, idle_seconds=600, gpu_budget=64)
    controller = Controller(
        datacenters,
        lists,
        scaling=Scaling(Overflow(settings), {"a": 64, "b": 128}),
        in_flight=in_flight,
        now=lambda: clock[0],
        notice_seconds=0.0,
    )
    controller.want([planned(GLM)])
    return controller


async def test_a_full_model_overflows_into_another_datacenter_and_shrinks_again():
    clock, busy = [0.0], [4]

    async def in_flight(found):
        return busy[0]

    lists, other = Lists(), Everywhere("b")
    controller = overflowing([Everywhere("a"), other], lists, in_flight, clock)
    for _ in range(3):
        await controller.step()
    assert len(lists.last) == 1
    clock[0] += 61
    for _ in range(3):
        await controller.step()
    assert len(lists.last) == 2
    assert [found.deployment for found in other.there.values()] == ["x-over1"]
    clock[0] += 1000  # still full, but the budget is spent
    for _ in range(3):
        await controller.step()
    assert len(lists.last) == 2
    busy[0] = 0
    await controller.step()
    clock[0] += 601
    for _ in range(3):
        await controller.step()
    assert len(lists.last) == 1
    assert other.there == {}


@pytest.mark.parametrize("said", [None, float("nan"), float("inf"), -1, ValueError("no count")])
async def test_a_load_that_is_not_told_drains_and_starts_nothing_and_stops_no_step(said):
    clock, busy, other = [0.0], [4], Everywhere("b")

    async def in_flight(found):
        if isinstance(busy[0], Exception):
            raise busy[0]
        return busy[0]

    lists = Lists()
    controller = overflowing([Everywhere("a"), other], lists, in_flight, clock)
    for seconds in (0, 0, 61, 0, 0):
        clock[0] += seconds
        await controller.step()
    assert len(lists.last) == 2
    busy[0] = said
    for _ in range(3):
        await controller.step()
        clock[0] += 601
    assert len(lists.last) == 2


async def test_what_overflowed_is_adopted_only_within_the_budget():
    settings = OverflowSettings(gpu_budget=GLM.gpus)
    scaling = Scaling(Overflow(settings), {"a": 640})
    found = [
        Found(f"x-over{at}-1", f"x-over{at}", "1", "a", GLM.model.id, "ready") for at in (1, 2)
    ]
    fleet = [planned(GLM)]
    assert scaling.follow(fleet) == []
    assert scaling.adopt(found)
    assert [one.id for one in scaling.follow(fleet)] == ["x-over1"]
    assert not scaling.adopt(found)


async def test_the_next_controller_keeps_what_overflowed():
    clock, other = [0.0], Everywhere("b")

    async def in_flight(found):
        return 4

    first = overflowing([Everywhere("a"), other], Lists(), in_flight, clock)
    home = Everywhere("a")
    for _ in range(3):
        await first.step()
    clock[0] += 61
    for _ in range(2):
        await first.step()
    before = list(other.there)
    assert [found.deployment for found in other.there.values()] == ["x-over1"]
    lists = Lists()
    second = overflowing([home, other], lists, in_flight, clock)
    for _ in range(3):
        await second.step()
    assert list(other.there) == before
    assert len(lists.last) == 2


async def test_what_overflowed_changes_with_the_file_and_ends_when_its_model_leaves_it():
    """It once served the old revision for as long as there was load, and for ever when the model
    was gone."""
    one = Everywhere("a")
    watched = Watched(one)
    watched.controller.want([planned(revised("r1"))])
    await watched.after(0)
    assert await watched.after(80) == [["x", "x-over1"]]
    watched.busy = 3
    watched.controller.want([planned(revised("r2"))])
    assert await watched.after(0) == [["x", "x-over1"]]
    assert {found.planned.spec.model.revision for found in one.there.values()} == {"r2"}
    assert [] not in watched.lists.all[1:]
    watched.controller.want([planned(revised("r1", "other/model"), "y")])
    assert await watched.after(0) == [["y"]]


async def test_the_files_own_deployments_come_before_those_of_overflow():
    watched = Watched(Everywhere("a"), gpus=3 * GLM.gpus)
    watched.controller.want([planned(GLM)])
    await watched.after(0)
    await watched.after(80)
    assert await watched.after(80) == [["x", "x-over1", "x-over2"]]
    watched.controller.want([planned(GLM), planned(revised("r1", "other/model"), "y")])
    assert await watched.after(0) == [["x", "x-over1", "y"]]


async def test_overflow_is_what_the_model_is_in_that_datacenter():
    """Which may have other hardware."""
    other = find_spec("glm-5.3-h200")
    one, two = Everywhere("a"), Everywhere("b")
    watched = Watched(one, two, gpus=GLM.gpus + other.gpus)
    watched.controller.want([planned(GLM), planned(other, "y", "b")])
    await watched.after(0)
    there = await watched.after(80)
    extra = [found for place in (one, two) for found in place.there.values()]
    gpus = {found.datacenter: found.planned.spec.hardware.gpu for found in extra}
    assert gpus == {"a": "gb200", "b": "h200"}
    assert sum(map(len, there)) == 3


async def test_a_datacenter_that_is_lost_is_no_room_and_is_not_chosen():
    """Its slots once counted as free ones for good."""
    lost, left = Everywhere("a"), Everywhere("b")
    watched = Watched(lost, left)
    watched.controller.want([planned(GLM), planned(GLM, "y", "b")])
    watched.busy = 3
    await watched.after(0)
    lost.answers, watched.busy = False, 4
    assert await watched.after(80) == [["x"], ["y", "y-over1"]]


async def test_a_model_whose_datacenter_is_lost_is_started_elsewhere():
    lost, left = Everywhere("a"), Everywhere("b")
    lost.answers = False  # since before this controller began
    watched = Watched(lost, left)
    watched.controller.want([planned(GLM)])
    await watched.after(0)
    assert await watched.after(80) == [[], ["x-over1"]]
    watched.busy, lost.answers = 0, True
    assert await watched.after(0) == [["x"], ["x-over1"]]
    assert await watched.after(700) == [["x"], []]


@pytest.mark.parametrize("state", ["crash-looping", "starting", "failing"])
async def test_overflow_that_does_not_get_ready_is_given_up_for_another_place(state, caplog):
    """It once held its GPUs, and all overflow of its model, for ever."""
    one, two = Everywhere("a"), Everywhere("b")
    one.states["x-over1"] = state
    watched = Watched(one, two, budget=GLM.gpus)
    watched.controller.want([planned(GLM)])
    await watched.after(0)
    assert await watched.after(80) == [["x", "x-over1"], []] or state == "crash-looping"
    assert await watched.after(400) == [["x"], ["x-over2"]]
    assert [line for line in caplog.messages if "x-over1 in a is given up" in line]


async def test_a_place_where_it_did_not_get_ready_is_tried_again_later_or_with_something_else():
    one = Everywhere("a")
    one.states |= {"x-over1": "crash-looping", "x-over2": "crash-looping"}
    watched = Watched(one)
    watched.controller.want([planned(GLM)])
    await watched.after(0)
    await watched.after(80)
    assert one.deployments == ["x"]
    assert await watched.after(200) == [["x"]]
    await watched.after(200)  # tried again: given up at once
    watched.controller.want([planned(revised("mended"))])
    await watched.after(0)
    assert await watched.after(80) == [["x", "x-over3"]]


async def test_a_start_that_fell_into_a_silent_datacenter_holds_up_nothing():
    class Lost(Everywhere):
        async def start(self, start):
            self.answers = "-over" not in start.name
            if not self.answers:
                raise DatacenterUnreachable("no route")
            await super().start(start)

    watched = Watched(Lost("a"), Everywhere("b"))
    watched.controller.want([planned(GLM)])
    await watched.after(0)
    await watched.after(80)
    assert await watched.after(80) == [["x"], ["x-over2"]]
