"""`prime inference fleet control`, as a process over this machine and a cluster's API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from prime_inference.adapters.files.cache_reports import CacheReportsFile
from prime_inference.fleet.caches import reports_file
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.ending import end_without_supervisor
from prime_inference.fleet.launcher.run import bring_down
from prime_inference.fleet.launcher.state import StateFolder
from tests.fleet.api_server import ApiServer
from tests.fleet.fleets import PATIENCE_SECONDS
from tests.fleet.stand_in import interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")

FLEET = """
name = "both"
[gateway]
notice_seconds = 0.1
[[datacenter]]
id = "here"
[[datacenter]]
id = "cluster"
frontend_url = "http://{{deployment}}.cluster.example/v1"
kubernetes = {{ server = "{server}", namespace = "prime", token_file = "{token}" }}
[[deployment]]
id = "tiny"
datacenter = "here"
spec = "mocker"
changes = {{ topology = {{ prefill = {{ replicas = 1 }}, decode = {{ replicas = 1 }} }} }}
[[deployment]]
id = "big"
datacenter = "cluster"
spec = "glm-5.3-gb200"
changes = {{ limits = {{ slots = {slots} }} }}
"""
GRAPHS = "dynamographdeployments"


class Controlled:
    """The command over a fleet of a local datacenter and a cluster."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        self.server = server
        self._folder = folder
        self._token = folder / "token"
        self._token.write_text("secret-1")
        self.file = folder / "fleet.toml"
        self.local = StateFolder(folder / "state/fleets/both.here")
        self.process: asyncio.subprocess.Process | None = None

    def want(self, slots: int) -> None:
        text = FLEET.format(server=self.server.url, token=self._token, slots=slots)
        self.file.write_text(text)

    async def start(self) -> dict[str, Any]:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "prime_inference.cli", "inference", "fleet", "control",
            str(self.file), "--state-dir", str(self._folder / "state"),
            "--python", interpreter(self._folder), "-o", "json",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines = await self.process.stdout.readuntil(b"\n}\n")
        return dict(json.loads(lines))

    async def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return await self.process.wait()

    @property
    def list_here(self) -> Path:
        return self._folder / "state/controllers/both/deployments.json"

    @property
    def listed_here(self) -> dict[str, str]:
        return listed(self.list_here.read_text()) if self.list_here.exists() else {}

    @property
    def listed_in_cluster(self) -> dict[str, str]:
        found = self.server.objects.get(("configmaps", "both-gateway"))
        return listed(found["data"]["deployments.json"]) if found else {}


def listed(text: str) -> dict[str, str]:
    """Base URLs by the deployment's name, without its content's mark."""
    entries = json.loads(text)["deployments"]
    return {one["id"].rpartition("-")[0]: one["base_url"] for one in entries}


async def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.05)


@pytest.fixture
async def controlled(tmp_path: Path) -> AsyncIterator[Controlled]:
    async with ApiServer() as server:
        fleet = Controlled(tmp_path, server)
        fleet.want(slots=64)
        try:
            yield fleet
        finally:
            with contextlib.suppress(ProcessLookupError):
                await fleet.end(signal.SIGKILL)
            await end_without_supervisor(fleet.local)


async def test_one_file_rules_this_machine_and_a_cluster(controlled: Controlled):
    server = controlled.server
    said = await controlled.start()
    assert said["folders"] == {"here": str(controlled.local.folder)}
    await until(lambda: controlled.listed_here.keys() == {"tiny"} and server.names(GRAPHS))
    assert controlled.listed_in_cluster == {}  # nobody said how a cluster reaches this machine
    (first,) = server.names(GRAPHS)
    assert server.tokens == {"Bearer secret-1"}

    await server.operate(first, "successful")
    await until(lambda: controlled.listed_here.keys() == {"tiny", "big"})
    assert controlled.listed_here["big"] == f"http://{first}.cluster.example/v1"
    await until(lambda: controlled.listed_in_cluster)
    assert controlled.listed_in_cluster["big"].startswith(f"http://{first}-frontend.prime.svc")

    controlled.want(slots=32)  # a file that changes is followed: the new one beside the old one
    await until(lambda: len(server.names(GRAPHS)) == 2)
    (second,) = set(server.names(GRAPHS)) - {first}
    await server.operate(second, "successful")
    await until(lambda: server.names(GRAPHS) == [second])
    assert f"{second}-frontend" in controlled.listed_in_cluster["big"]

    before = controlled.listed_here
    server.silent = True  # what the next controller cannot see stays listed
    assert await controlled.end(signal.SIGTERM) == 0
    await controlled.start()
    await until(lambda: server.refused)
    await asyncio.sleep(1.2)
    assert controlled.listed_here == before


async def test_a_datacenter_whose_controller_runs_is_not_ended_under_it(controlled: Controlled):
    await controlled.start()
    await until(lambda: controlled.listed_here)
    folder = str(controlled.local.folder)
    before = processes.find(folder)
    assert controlled.process is not None
    with pytest.raises(
        FleetRefused, match=f"A controller, process {controlled.process.pid}, keeps"
    ):
        await bring_down(controlled.local)
    assert processes.find(folder) == before
    await controlled.end(signal.SIGTERM)
    await bring_down(controlled.local)
    assert processes.find(folder) == {}


async def test_a_controller_that_dies_ends_nothing_and_the_next_one_goes_on(
    controlled: Controlled,
):
    await controlled.start()
    await until(lambda: controlled.listed_here)
    folder = str(controlled.local.folder)
    before = processes.find(folder)
    reports = CacheReportsFile(reports_file(controlled.list_here), time.time)
    await reports.refresh()  # as a gateway that follows the list does when somebody looks
    assert [name.rpartition("-")[0] for name in reports.latest()] == ["tiny"]
    assert await controlled.end(signal.SIGKILL) == -signal.SIGKILL
    assert processes.find(folder) == before

    await controlled.start()
    await until(lambda: (controlled.local.folder / "control.sock").exists())
    controlled.file.write_text("nonsense =")  # what is wrong changes nothing
    await asyncio.sleep(1.5)
    assert controlled.listed_here.keys() == {"tiny"}
    assert await controlled.end(signal.SIGTERM) == 0
    assert processes.find(folder) == before


MOVED = """
name = "both"
[gateway]
notice_seconds = 0.1
[[datacenter]]
id = "there"
[[deployment]]
id = "renamed"
datacenter = "there"
spec = "mocker"
changes = { topology = { prefill = { replicas = 1 }, decode = { replicas = 1 } } }
"""


async def test_what_left_the_file_is_drained_once_its_successors_serve(controlled: Controlled):
    """It once ran, and was listed, for ever: here without anybody who kept it."""
    server = controlled.server
    await controlled.start()
    await until(lambda: controlled.listed_here.keys() == {"tiny"} and server.names(GRAPHS))
    await server.operate(server.names(GRAPHS)[0], "successful")
    await until(lambda: controlled.listed_here.keys() == {"tiny", "big"})
    assert await controlled.end(signal.SIGKILL) == -signal.SIGKILL
    controlled.file.write_text(MOVED)
    folder = StateFolder(controlled.local.folder.with_name("both.there"))
    seen = []

    def moved() -> bool:
        seen.append(controlled.listed_here.keys())
        return seen[-1] == {"renamed"}

    try:
        await controlled.start()
        await until(moved)
        assert all(keys & {"tiny", "renamed"} for keys in seen)
        await until(lambda: processes.find(str(controlled.local.folder)) == {})
        await until(lambda: server.names(GRAPHS) == [])
        assert controlled.listed_in_cluster == {}
        known = controlled.list_here.with_name("clusters.json")
        await until(lambda: json.loads(known.read_text()) == [])
    finally:
        await controlled.end(signal.SIGKILL)
        await end_without_supervisor(folder)
