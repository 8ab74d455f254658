"""Roll-outs that do not come through, under a controller, in datacenters in memory."""

from __future__ import annotations

import dataclasses

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import LONG_DRAIN_SECONDS, Controller
from prime_inference.fleet.controller.reconcile import digest
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
