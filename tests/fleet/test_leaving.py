"""Datacenters that left the fleet's file: nothing of them is forgotten."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import LEAVING_SECONDS, Controller
from prime_inference.fleet.controller.leaving import KnownClusters, left_on_this_machine
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import ClusterEntry, DatacenterEntry, Fleet, GatewayEntry
from prime_inference.fleet.launcher import processes as launched
from prime_inference.fleet.launcher.state import DeploymentRecord, FleetState, StateFolder
from prime_inference.fleet.ready import ReadyDeployment
from tests.fleet.datacenters import Everywhere, Lists, planned

GLM = find_spec("glm-5.3-gb200")


class Left:
    """A controller of `a`, which has `x`, that a datacenter `b` with `y` left."""

    def __init__(self):
        self.lists = Lists()
        self.gone: list[str] = []
        self.now = 0.0
        self.stays, self.leaves = Everywhere("a"), Everywhere("b")
        self.controller = Controller(
            [self.stays, self.leaves],
            self.lists,
            leaving=["b"],
            left=self.gone.append,
            now=lambda: self.now,
            notice_seconds=0.0,
        )

    async def begin(self):
        """As the controller before had it."""
        before = Controller([self.leaves], Lists(), notice_seconds=0.0)
        before.want([planned(GLM, "y", "b")])
        await before.step()

    async def steps(self, count=3):
        for _ in range(count):
            await self.controller.step()
        return [name.rpartition("-")[0] for name in self.lists.last]


async def test_a_datacenter_that_left_is_drained_once_others_serve_its_model():
    fleet = Left()
    await fleet.begin()
    fleet.stays.states["x"] = "starting"
    fleet.controller.want([planned(GLM)])
    assert await fleet.steps() == ["y"]
    assert (fleet.leaves.deployments, fleet.gone) == (["y"], [])
    fleet.stays.there.clear()
    fleet.stays.states.clear()
    assert await fleet.steps() == ["x"]
    assert (fleet.leaves.deployments, fleet.gone) == ([], ["b"])
    fleet.leaves.answers = False  # it is asked no more
    assert await fleet.steps() == ["x"]
    assert fleet.gone == ["b"]


async def test_one_that_left_and_does_not_answer_is_listed_no_longer_and_drained_when_it_does(
    caplog,
):
    fleet = Left()
    await fleet.begin()
    fleet.controller.want([planned(GLM, "x")])
    fleet.stays.states["x"] = "starting"
    assert await fleet.steps() == ["y"]
    fleet.leaves.answers = False
    fleet.now += LEAVING_SECONDS - 1
    assert await fleet.steps() == ["y"]
    fleet.now += 1
    assert await fleet.steps() == []
    said = [line for line in caplog.messages if line.startswith("b left the file and does not")]
    assert len(said) == 1
    fleet.leaves.answers = True
    fleet.stays.there.clear()
    fleet.stays.states.clear()
    assert await fleet.steps(4) == ["x"]
    assert (fleet.leaves.deployments, fleet.gone) == ([], ["b"])


async def test_one_that_left_and_never_answers_is_listed_no_longer():
    lists, leaves, clock = Lists(), Everywhere("b"), [0.0]
    leaves.answers = False
    controller = Controller(
        [Everywhere("a"), leaves],
        lists,
        before=[ReadyDeployment.of(planned(GLM, "y", "b"), "http://y/v1")],
        leaving=["b"],
        now=lambda: clock[0],
        notice_seconds=0.0,
    )
    controller.want([planned(GLM)])
    listed = {}
    for clock[0] in (0.0, LEAVING_SECONDS - 1, LEAVING_SECONDS):
        await controller.step()
        await controller.step()
        listed[clock[0]] = sorted(name.partition("-")[0] for name in lists.last)
    assert list(listed.values()) == [["x", "y"], ["x", "y"], ["x"]]


async def test_what_is_listed_of_a_datacenter_that_nobody_knows_is_told_and_listed_no_longer(
    caplog,
):
    lists, before = Lists(), ReadyDeployment.of(planned(GLM, "y", "b"), "http://y/v1")
    controller = Controller([Everywhere("a")], lists, before=[before], notice_seconds=0.0)
    controller.want([planned(GLM)])
    for _ in range(3):
        await controller.step()
    assert [name.partition("-")[0] for name in lists.last] == ["x"]
    (said,) = [line for line in caplog.messages if line.startswith("y is listed no longer")]
    assert "no datacenter b" in said


def fleet_of(*datacenters, name="two"):
    return Fleet(name, datacenters, (), GatewayEntry())


def cluster(name, server="https://one", namespace="default"):
    return DatacenterEntry(name, kubernetes=ClusterEntry(server, namespace, token_file="/token"))


def test_clusters_are_known_until_nothing_of_them_is_left(tmp_path):
    file, here = tmp_path / "clusters.json", DatacenterEntry("here")
    first = KnownClusters(file, fleet_of(here, cluster("a"), cluster("b", "https://two")))
    assert first.leaving == []
    first.write()
    for _ in range(2):  # by however many controllers
        second = KnownClusters(file, fleet_of(here, cluster("a")))
        second.write()
        assert second.leaving == [cluster("b", "https://two")]
    second.left("b")
    assert KnownClusters(file, fleet_of(here, cluster("a"))).leaving == []


def test_a_list_of_clusters_that_cannot_be_written_is_told(tmp_path, caplog):
    KnownClusters(tmp_path / "gone" / "clusters.json", fleet_of(cluster("a"))).write()
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize(
    "now", [cluster("a", "https://new"), cluster("a", "https://one/"), cluster("a", "HTTPS://ONE")]
)
def test_a_cluster_at_another_address_is_the_same_one(tmp_path, now):
    """Opened by both names, what runs there was drained by the old one."""
    file = tmp_path / "clusters.json"
    KnownClusters(file, fleet_of(cluster("a"))).write()
    assert KnownClusters(file, fleet_of(now)).leaving == []


@pytest.mark.parametrize("now", [DatacenterEntry("a"), cluster("a", "https://new", "other")])
def test_an_id_that_means_another_place_is_refused(tmp_path, now):
    """Instances of both would have the same names, and those of before passed for the new."""
    file = tmp_path / "clusters.json"
    KnownClusters(file, fleet_of(cluster("a"))).write()
    with pytest.raises(FleetRefused, match="datacenter a in a cluster's namespace default"):
        KnownClusters(file, fleet_of(now))


def test_a_cluster_by_another_id_has_not_left(tmp_path):
    file = tmp_path / "clusters.json"
    KnownClusters(file, fleet_of(cluster("a"))).write()
    assert KnownClusters(file, fleet_of(cluster("renamed"))).leaving == []
    file.write_text("nonsense")
    assert KnownClusters(file, fleet_of(cluster("b"))).leaving == []


@pytest.fixture
def folders(tmp_path):
    """Of the fleet `two`: `b` lives, `dead` does not, `b.bak` is a copy, `b.tar` a file."""
    full = FleetState("fleet.toml", {"y-1": DeploymentRecord(18_000, planned(GLM, "y-1", "b"))})
    for name in ("two.a", "two.b", "two.b.bak", "two.dead", "other.b"):
        folder = StateFolder(tmp_path / name)
        folder.create()
        folder.save(full)
    (tmp_path / "two.b.tar").touch()
    (tmp_path / "two.file").touch()
    lives = [
        launched.start(
            [sys.executable, "-c", "import time; time.sleep(60)"], {}, tmp_path / "log",
            fleet=str(tmp_path / name), name="y-1/frontend",
        )
        for name in ("two.a", "two.b")
    ]  # fmt: skip
    yield tmp_path
    for pid in lives:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("now", "left"),
    [
        ([DatacenterEntry("a")], {"b": "two.b"}),
        ([DatacenterEntry("a"), DatacenterEntry("b")], {}),
    ],
)
def test_folders_of_datacenters_that_left_are_found_while_something_of_them_lives(
    folders, now, left
):
    """What does not live was started, only to be drained."""
    found = left_on_this_machine(folders, fleet_of(*now))
    assert {name: folder.folder.name for name, folder in found.items()} == left


def test_a_datacenter_of_this_machine_that_is_a_cluster_now_is_refused_while_it_lives(folders):
    with pytest.raises(FleetRefused, match="datacenter b in this machine"):
        left_on_this_machine(folders, fleet_of(DatacenterEntry("a"), cluster("b")))
