"""Roll-outs that do not come through, under a controller, in datacenters in memory."""

from __future__ import annotations

import dataclasses

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import (
    LATE_SECONDS,
    LONG_DRAIN_SECONDS,
    Controller,
)
from prime_inference.fleet.controller.reconcile import digest, instance_name
from prime_inference.fleet.ready import ReadyDeployment
from tests.fleet.datacenters import Everywhere, Lists, everywhere, planned

GLM = find_spec("glm-5.3-gb200")


class Broken(Everywhere):
    """One in which some contents crash-loop."""

    def __init__(self, *contents):
        super().__init__("a")
        self.contents = contents

    async def start(self, start):
        state = "crash-looping" if start.content in self.contents else "ready"
        self.there[start.name] = everywhere("a", start, state)


async def test_a_broken_roll_out_stops_no_other(caplog):
    broken = planned(GLM, slots=5)
    datacenter, lists = Broken(digest(broken)), Lists()
    controller = Controller([datacenter], lists, notice_seconds=0.0)
    controller.want([planned(GLM), planned(GLM, "y"), planned(GLM, "z")])
    for _ in range(3):
        await controller.step()
    controller.want([broken, planned(GLM, "y", slots=6), planned(GLM, "z", slots=7)])
    for _ in range(20):
        await controller.step()
    there = sorted(
        (one.deployment, one.state, one.planned.spec.limits.slots)
        for one in datacenter.there.values()
    )
    assert there == [
        ("x", "crash-looping", 5),  # it is tried on
        ("x", "ready", 4),
        ("y", "ready", 6),
        ("z", "ready", 7),
    ]
    assert len([line for line in caplog.messages if "gives way" in line]) == 1


async def test_one_that_never_gets_ready_is_told_once_and_stops_no_other(caplog):
    """In a cluster it does not crash: its pods wait for an image, say."""
    clock, datacenter = [0.0], Everywhere("a")
    controller = Controller([datacenter], Lists(), notice_seconds=0.0, now=lambda: clock[0])
    controller.want([planned(GLM), planned(GLM, "y")])
    await controller.step()
    datacenter.states["x"] = "starting"
    controller.want([planned(GLM, slots=5), planned(GLM, "y", slots=6)])
    for _ in range(5):
        await controller.step()
        clock[0] += LATE_SECONDS / 2
    for _ in range(5):
        await controller.step()
    there = {one.deployment: one.planned.spec.limits.slots for one in datacenter.there.values()}
    assert there["y"] == 6
    assert len([line for line in caplog.messages if "has not been ready" in line]) == 1


async def test_a_drain_that_does_not_end_is_told_once(caplog):
    class Stuck(Everywhere):
        async def drain(self, found):
            pass

    clock, datacenter = [0.0], Stuck("a")
    controller = Controller([datacenter], Lists(), notice_seconds=0.0, now=lambda: clock[0])
    controller.want([planned(GLM), planned(GLM, "y")])
    await controller.step()
    (name,) = [name for name in datacenter.there if name.startswith("y-")]
    datacenter.there[name] = dataclasses.replace(datacenter.there[name], state="draining")
    for _ in range(5):
        await controller.step()
        clock[0] += LONG_DRAIN_SECONDS / 2
    (said,) = [line for line in caplog.messages if "is not gone" in line]
    assert said.startswith(name)


async def test_the_time_that_gateways_get_holds_up_no_step_and_takes_nothing_for_granted():
    """A cluster's gateways get two minutes, in which all other lists once waited."""
    clock, datacenter, lists = [0.0], Everywhere("a"), Lists()
    controller = Controller([datacenter], lists, notice_seconds=120.0, now=lambda: clock[0])
    old, new = planned(GLM), planned(GLM, slots=5)
    first, second = (instance_name(one, digest(one)) for one in (old, new))

    async def after(seconds):
        clock[0] += seconds
        for _ in range(2):
            await controller.step()
        return lists.last, sorted(datacenter.there) == sorted([first, second])

    controller.want([old])
    assert await after(0) == ([first], False)
    controller.want([new])
    assert await after(0) == ([second], True)
    assert await after(119) == ([second], True)
    datacenter.there[second] = dataclasses.replace(datacenter.there[second], state="failing")
    assert await after(0) == ([first], True)  # it is listed again: nothing was drained
    datacenter.there[second] = dataclasses.replace(datacenter.there[second], state="ready")
    assert await after(0) == ([second], True)
    assert await after(119) == ([second], True)  # once more from the beginning
    assert await after(1) == ([second], False)


async def test_the_next_controller_gives_gateways_their_time_too():
    clock, datacenter = [0.0], Everywhere("a")
    first = Controller([datacenter], Lists(), notice_seconds=0.0)
    first.want([planned(GLM), planned(GLM, "y")])
    await first.step()
    before = [
        ReadyDeployment.of(planned(GLM, "y"), "http://y/v1", name) for name in datacenter.there
    ]
    second = Controller(
        [datacenter], Lists(), before=before, notice_seconds=120.0, now=lambda: clock[0]
    )
    second.want([planned(GLM)])
    for seconds, there in ((0, ["x", "y"]), (119, ["x", "y"]), (1, ["x"])):
        clock[0] += seconds
        await second.step()
        assert datacenter.deployments == there
