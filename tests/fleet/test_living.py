"""What lives is a fleet's by its environment, whatever is written of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys

import pytest

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.local_datacenter import LocalDatacenter
from prime_inference.fleet.controller.reconcile import Start
from prime_inference.fleet.errors import FleetRunning
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.control import Command, ask, listening
from prime_inference.fleet.launcher.ending import end_without_supervisor, everything, turn
from prime_inference.fleet.launcher.run import bring_down, fleet_folder
from prime_inference.fleet.launcher.state import StateFolder
from tests.fleet.fleets import (
    PATIENCE_SECONDS,
    all_in,
    cleaned,
    deployment,
    pids,
    supervisor_of,
    until,
    write_fleet,
)
from tests.fleet.stand_in import interpreter
from tests.fleet.test_takeover import ONE, left_running

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")


@pytest.fixture
def fleet(tmp_path):
    """The file of a fleet of one small deployment, tiny-b."""
    return write_fleet(tmp_path, ONE)


@contextlib.asynccontextmanager
async def supervised(file, state_dir):
    """A supervisor that has started; its processes outlive it."""
    one = supervisor_of(file, state_dir)
    await one.start()
    try:
        yield one
    finally:
        await one.close(stop=False)


def full(path, *_, **__):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


async def test_what_was_started_while_the_disk_was_full_is_taken_over(fleet, tmp_path, monkeypatch):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        with monkeypatch.context() as patched:
            patched.setattr("prime_inference.fleet.launcher.state.replace_file", full)
            patched.setattr("prime_inference.fleet.ready.replace_file", full)
            async with supervised(fleet, state_dir) as one:
                os.kill(before["tiny-b/frontend"], signal.SIGKILL)
                await one.scale("tiny-b", "decode", 2)
                status = await until(one, lambda status: all_in(status, "ready"))
            served = pids(status)
            assert served.keys() - before.keys() == {"tiny-b/decode-1"}
            assert served["tiny-b/frontend"] != before["tiny-b/frontend"]
            async with supervised(fleet, state_dir) as one:  # the disk is full still
                status = await until(one, lambda status: all_in(status, "ready"))
                assert pids(status) == served
                assert status["unwritten"].keys() == {"state.json", "deployments.json"}
        async with supervised(fleet, state_dir) as one:
            status = await until(one, lambda status: all_in(status, "ready"))
            assert pids(status) == served
            assert deployment(status, "tiny-b")["replicas"] == {"prefill": 1, "decode": 2}
        state = folder.load()
        assert state is not None
        assert {one.pid for _, one in state.processes()} == set(served.values())


async def test_a_copy_of_a_fleets_state_is_another_fleet(fleet, tmp_path):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        copy = StateFolder(folder.folder.with_name("backup"))
        shutil.copytree(folder.folder, copy.folder)
        await bring_down(copy)
        assert all(processes.identity_of(pid) for pid in before.values())

        (tmp_path / "other").mkdir()
        other = write_fleet(tmp_path / "other", ONE.replace('"test"', '"second"'))
        async with cleaned(other, state_dir) as second:
            second.create()
            shutil.copy(folder.state_file, second.state_file)
            async with supervised(other, state_dir) as one:
                status = await until(one, lambda status: all_in(status, "ready"))
                assert set(pids(status).values()).isdisjoint(before.values())
                assert one._ports._taken == set(one._state.ports())
            await bring_down(second)
            assert processes.find(str(second.folder)) == {}
        async with supervised(fleet, state_dir) as one:
            status = await until(one, lambda status: all_in(status, "ready"))
            assert pids(status) == before


@pytest.mark.parametrize("moved", [False, True])
async def test_a_fleet_is_itself_by_another_path(fleet, tmp_path, moved):
    async with cleaned(fleet, tmp_path / "state"):
        before = await left_running(fleet, tmp_path / "state")
        if not moved:  # it is found again too
            (tmp_path / "state" / "fleets" / "test" / "state.json").unlink()
        if moved:
            (tmp_path / "state").rename(tmp_path / "here")
        else:
            (tmp_path / "here").symlink_to(tmp_path / "state")
        async with supervised(fleet, tmp_path / "here") as one:
            if not moved:  # else they find each other no more
                await until(one, lambda status: all_in(status, "ready"))
            assert pids(await one.status()) == before
        await end_without_supervisor(fleet_folder(tmp_path / "here", one.fleet))
        assert not any(processes.identity_of(pid) for pid in before.values())


@pytest.mark.parametrize("state", ['{"file":"x"}', None])
async def test_a_state_that_knows_nothing_of_what_runs_ends_nothing(fleet, tmp_path, state):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        if state is None:  # of another content, and of processes that are gone
            text = folder.state_file.read_text()
            for pid in before.values():
                text = text.replace(f'"pid":{pid}', f'"pid":{2**22 + pid}')
            state = text.replace('"revision":"', '"revision":"other-')
        folder.state_file.write_text(state)
        async with supervised(fleet, state_dir) as one:
            status = await until(one, lambda status: all_in(status, "ready"))
            assert pids(status) == before


async def test_a_second_process_of_a_name_and_one_that_carries_nothing_are_ended(fleet, tmp_path):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        strays = [
            processes.start(
                sleeping, {}, tmp_path / "log", fleet=str(folder.folder), name=name, record=record
            )
            for name, record in [("tiny-b/decode-0", ""), ("tiny-b/x", "{"), ("gone/y", "")]
        ]
        async with supervised(fleet, state_dir) as one:
            status = await until(one, lambda status: all_in(status, "ready"))
            assert pids(status) == before
            assert not any(processes.identity_of(pid) for pid in strays)


async def test_what_froze_while_nobody_supervised_is_killed(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr("prime_inference.fleet.launcher.keeper.PROBES_MISSED", 1)
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir):
        before = await left_running(fleet, state_dir)
        frozen = {"tiny-b/frontend", "tiny-b/decode-0"}
        for name in frozen:
            os.kill(before[name], signal.SIGSTOP)
        async with supervised(fleet, state_dir) as one:
            # gateways are told that requests wait there in vain
            await until(one, lambda status: deployment(status, "tiny-b")["down"])

            def changed(status):
                return {name for name, pid in pids(status).items() if pid != before[name]}

            await until(one, lambda status: all_in(status, "ready") and changed(status) >= frozen)


async def test_a_folder_that_is_removed_under_a_supervisor_is_made_anew(fleet, tmp_path):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder, supervised(fleet, state_dir) as one:
        before = pids(await until(one, lambda status: all_in(status, "ready")))
        async with listening(one, folder):
            shutil.rmtree(state_dir)
            await until(one, lambda _: folder.ready_file.exists() and folder.socket.exists())
            second = supervisor_of(fleet, state_dir)
            with pytest.raises(FleetRunning):
                await second.start()
            await second.close(stop=False)
            assert pids(await ask(folder, Command("status"))) == before
            state = folder.load()
            assert state is not None
            assert {record.pid for _, record in state.processes()} == set(before.values())


async def test_a_supervisor_in_whose_place_is_another_leaves(fleet, tmp_path, monkeypatch):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder, supervised(fleet, state_dir) as one:
        before = pids(await until(one, lambda status: all_in(status, "ready")))
        folder.lock_file.unlink()
        async with supervised(fleet, state_dir) as second:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await one.finished.wait()
            assert pids(await until(second, lambda status: all_in(status, "ready"))) == before


async def test_a_deployment_whose_model_is_gone_holds_up_no_other(tmp_path):
    folder = StateFolder(tmp_path / "dc")
    (tmp_path / "m").mkdir()
    pools = {role: {"replicas": 1} for role in ("prefill", "decode")}

    def planned(name, **changes):
        return PlannedDeployment(
            name, "a", find_spec("mocker", changes=changes | {"topology": pools})
        )

    datacenter = LocalDatacenter("a", folder, python=interpreter(tmp_path), base=tmp_path)
    await datacenter.open()
    gone = planned("gone", model={"source": "./m"})
    for one in (gone, planned("x")):
        await datacenter.start(Start(one.id, "", one))
    await datacenter.close(stop=False)
    assert await processes.end_all(lambda: everything(folder, None), turn, 1.0) == []
    state = folder.load()
    assert state is not None
    state.deployments["gone"].processes.pop("decode-0")
    folder.save(state)
    (tmp_path / "m").rmdir()
    again = LocalDatacenter("a", folder, python=interpreter(tmp_path), base=tmp_path)
    await again.open()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            found: dict[str, str] = {}
            while found.get("x") != "ready":
                found = {one.name: one.state for one in await again.instances()}
                await asyncio.sleep(0.05)
        assert found["gone"] != "ready"
    finally:
        await again.close(stop=True)
    assert processes.find(str(folder.folder)) == {}
