"""What the next launcher, and the next controller, make of what runs; and what `down` ends."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import Controller
from prime_inference.fleet.controller.local_datacenter import LocalDatacenter
from prime_inference.fleet.errors import (
    FleetFrozen,
    FleetNotRunning,
    FleetRefused,
    FleetRunning,
    SpecMalformed,
)
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.launcher import gateway, processes, supervisor
from prime_inference.fleet.launcher.control import Command, ask, listening
from prime_inference.fleet.launcher.deployment import RunningDeployment
from prime_inference.fleet.launcher.ports import Ports
from prime_inference.fleet.launcher.run import bring_down, is_ready, until_ready
from prime_inference.fleet.launcher.state import DeploymentRecord, StateFolder
from prime_inference.fleet.launcher.takeover import fate, same_processes
from prime_inference.fleet.ready import parse_ready
from tests.fleet.fleets import (
    FLEET,
    PATIENCE_SECONDS,
    all_in,
    cleaned,
    deployment,
    listed,
    pids,
    running,
    supervisor_of,
    until,
    write_fleet,
)
from tests.fleet.stand_in import break_processes, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")

ONE = FLEET[: FLEET.index("[[deployment]]")] + FLEET[FLEET.rindex("[[deployment]]") :]


@pytest.fixture
def fleet(tmp_path):
    """The file of a fleet of one small deployment, tiny-b."""
    return write_fleet(tmp_path, ONE)


async def left_running(file, state_dir):
    """A fleet that is whole and has no supervisor; the ids of its processes."""
    first = supervisor_of(file, state_dir)
    await first.start()
    status = await until(first, lambda status: all_in(status, "ready"))
    await first.close(stop=False)
    return pids(status)


# -- a drain that was cut off


async def test_what_was_being_drained_is_drained_on_by_the_next_launcher(fleet, tmp_path):
    async with cleaned(fleet, tmp_path / "state") as folder:
        first = supervisor_of(fleet, tmp_path / "state")
        await first.start()
        before = pids(await until(first, lambda status: all_in(status, "ready")))
        in_flight = folder.discovery("tiny-b") / "in-flight"
        in_flight.write_text("1")
        drain = asyncio.create_task(first.drain("tiny-b"))
        await until(first, lambda status: all_in(status, "draining"))
        drain.cancel()
        await first.close(stop=False)

        second = supervisor_of(fleet, tmp_path / "state")
        await second.start()
        try:
            status = await until(second, lambda status: all_in(status, "draining"))
            assert pids(status) == before
            await asyncio.sleep(1.5)  # longer than gateways get to notice
            assert all(processes.identity_of(pid) for pid in before.values())
            in_flight.write_text("0")
            await until(second, lambda status: all_in(status, "stopped"))
            assert processes.find(str(folder.folder)) == {}
            await second.scale("tiny-b", "decode", 2)
        finally:
            await second.close(stop=False)

        third = supervisor_of(fleet, tmp_path / "state")
        await third.start()
        try:
            assert deployment(await third.status(), "tiny-b")["replicas"]["decode"] == 2
        finally:
            await third.close(stop=True)


async def test_down_ends_a_fleet_whose_drain_was_cut_off(fleet, tmp_path):
    async with cleaned(fleet, tmp_path / "state") as folder:
        first = supervisor_of(fleet, tmp_path / "state")
        await first.start()
        await until(first, lambda status: all_in(status, "ready"))
        (folder.discovery("tiny-b") / "in-flight").write_text("1")
        drain = asyncio.create_task(first.drain("tiny-b"))
        await until(first, lambda status: all_in(status, "draining"))
        drain.cancel()
        await first.close(stop=False)
        second = supervisor_of(fleet, tmp_path / "state")
        await second.start()
        async with listening(second, folder):
            await bring_down(folder)
        await second.close(stop=False)
        assert processes.find(str(folder.folder)) == {}


async def test_a_restart_during_a_drain_undoes_it_and_ends_nothing(fleet, tmp_path):
    async with running(fleet, tmp_path / "state") as one:
        before = pids(await one.status())
        folder = StateFolder(tmp_path / "state" / "fleets" / "test")
        (folder.discovery("tiny-b") / "in-flight").write_text("1")
        drain = asyncio.create_task(one.drain("tiny-b"))
        await until(one, lambda status: all_in(status, "draining"))
        await one.restart("tiny-b", None)
        with pytest.raises(FleetRefused, match="tiny-b was restarted, so it is not drained"):
            await drain
        status = await until(one, lambda status: all_in(status, "ready"))
        assert pids(status) == before
        os.kill(before["tiny-b/decode-0"], signal.SIGKILL)  # it is watched again
        await until(one, lambda found: pids(found)["tiny-b/decode-0"] not in (0, *before.values()))


async def test_the_next_controller_drains_on_and_tries_a_failed_drain_again(tmp_path, monkeypatch):
    folder, python = StateFolder(tmp_path / "dc"), interpreter(tmp_path)
    pools = {role: {"replicas": 1} for role in ("prefill", "decode")}
    spec = find_spec("mocker", changes={"topology": pools})
    old, new = (
        PlannedDeployment("x", "a", replace(spec, limits=replace(spec.limits, slots=slots)))
        for slots in (4, 5)
    )

    async def publish(ready, down):
        pass

    async def stepped(controller, holds):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds(controller.found):
                await controller.step()
                await asyncio.sleep(0.02)

    datacenter = LocalDatacenter("a", folder, python=python, base=tmp_path)
    await datacenter.open()
    controller = Controller([datacenter], publish, notice_seconds=0.0)
    controller.want([old])
    await controller.step()
    assert [one.state for one in await datacenter.instances()] == ["starting"]  # at once
    await stepped(controller, lambda found: [one.state for one in found] == ["ready"])
    (first,) = [one.name for one in controller.found]
    in_flight = folder.discovery(first) / "in-flight"
    in_flight.write_text("1")
    controller.want([new])
    await stepped(controller, lambda found: "draining" in [one.state for one in found])
    await datacenter.close(stop=False)  # as if it was killed
    assert len(processes.find(str(folder.folder))) == 6

    remove, failures = supervisor.Supervisor.remove, [RuntimeError("a defect")]

    async def failing(self, name):
        if failures:
            raise failures.pop()
        await remove(self, name)

    monkeypatch.setattr(supervisor.Supervisor, "remove", failing)
    again = LocalDatacenter("a", folder, python=python, base=tmp_path)
    await again.open()
    try:
        taken = Controller([again], publish, notice_seconds=0.0)
        taken.want([new])
        await stepped(
            taken, lambda found: sorted(one.state for one in found) == ["draining", "ready"]
        )
        in_flight.write_text("0")
        await stepped(taken, lambda found: [one.state for one in found] == ["ready"])
        assert {name.partition("/")[0] for name in processes.find(str(folder.folder))} == {
            taken.found[0].name
        }
        assert not failures
        taken.want([old])
        await stepped(taken, lambda found: [one.name for one in found] == [first])
    finally:
        await again.close(stop=True)
    assert processes.find(str(folder.folder)) == {}


# -- a file that changed


async def test_a_changed_deployment_is_told_as_it_runs_until_it_is_replaced(fleet, tmp_path):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        changed = "model = { revision = 'NEW', context_tokens = 4096 }, topology"
        write_fleet(tmp_path, ONE.replace("{ topology", "{ " + changed))
        one = supervisor_of(fleet, state_dir)
        await one.start()
        try:
            told: list[tuple[str, bool]] = []

            def whole(status):
                same = pids(status) == before
                told.extend(
                    (one.revision, same) for one in parse_ready(folder.ready_file.read_bytes())
                )
                return is_ready(status)

            status = await until(one, whole)
            await until(one, lambda status: listed(one, state_dir) == ["tiny-b"])
            (ready,) = parse_ready(folder.ready_file.read_bytes())
            assert (ready.revision, ready.context_tokens) == ("NEW", 4096)
            assert ("NEW", True) not in told
            assert set(pids(status).values()).isdisjoint(before.values())
            assert not any(processes.identity_of(pid) for pid in before.values())
        finally:
            await one.close(stop=True)


async def test_what_only_gateways_are_told_and_replicas_change_without_a_restart(fleet, tmp_path):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        text = ONE.replace("decode = { replicas = 1 }", "decode = { replicas = 2 }")
        write_fleet(tmp_path, text.replace("{ topology", "{ limits = { slots = 7 }, topology"))
        await left_running(fleet, state_dir)
        (ready,) = parse_ready(folder.ready_file.read_bytes())
        assert ready.slots == 7
        write_fleet(tmp_path, ONE)
        one = supervisor_of(fleet, state_dir)
        await one.start()
        try:
            status = await until(one, lambda status: pids(status) == before)
            assert deployment(status, "tiny-b")["replicas"] == {"prefill": 1, "decode": 1}
        finally:
            await one.close(stop=True)


async def test_a_gateway_that_the_file_has_otherwise_or_not_at_all_ends(
    fleet, tmp_path, monkeypatch
):
    monkeypatch.setattr(gateway, "sys", SimpleNamespace(executable=interpreter(tmp_path)))
    state_dir = tmp_path / "state"

    async def up(entry, before=None):
        write_fleet(tmp_path, ONE.replace("enabled = false", entry))
        one = supervisor_of(fleet, state_dir)
        await one.start()
        status = await until(one, is_ready)
        if before is not None:
            await until(one, lambda _: processes.identity_of(before["pid"]) is None)
        taken = one._ports._taken
        await one.close(stop=False)
        assert taken - {1024} == set(one._state.ports()) - {1024}
        return status["gateway"]

    async with cleaned(fleet, state_dir) as folder:
        first = await up("port = 0\ncontrol_port = 0")
        assert first == await up("port = 0\ncontrol_port = 0")
        gone = processes.identity_of(first["pid"])
        assert gone is not None
        await processes.end_group(gone, 0)
        with socket.create_server(("127.0.0.1", first["port"])):  # somebody else has it by now
            moved = await up("port = 0\ncontrol_port = 0")
            assert moved["port"] != first["port"]
        first = moved
        second = await up("port = 1024\ncontrol_port = 0", first)
        assert second["base_url"] == "http://127.0.0.1:1024/api/v1"
        assert await up("enabled = false", second) is None
        assert "gateway/gateway" not in processes.find(str(folder.folder))


async def test_a_file_whose_model_is_not_there_leaves_what_serves(fleet, tmp_path, caplog):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir):
        before = await left_running(fleet, state_dir)
        write_fleet(
            tmp_path, ONE.replace("{ topology", "{ model = { source = './gone' }, topology")
        )
        one = supervisor_of(fleet, state_dir)
        await one.start()
        try:
            await until(one, lambda _: "others of mock/tiny stay as they are" in caplog.text)
            status = await until(one, lambda status: all_in(status, "ready"))
            assert pids(status) == before
            assert deployment(status, "tiny-b")["changed"]
            assert not is_ready(status)
        finally:
            await one.close(stop=True)


async def test_the_one_that_alone_of_several_of_its_model_serves_is_replaced_last(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("prime_inference.fleet.launcher.replacing.LOOK_SECONDS", 0.05)
    file, state_dir = write_fleet(tmp_path), tmp_path / "state"
    async with cleaned(file, state_dir):
        before = await left_running(file, state_dir)
        for name, pid in before.items():
            identity = processes.identity_of(pid)
            if name.startswith("tiny-a") and identity is not None:
                await processes.end_group(identity, 0)
        break_processes(tmp_path, "tiny-a/frontend")
        new = "model = { revision = 'NEW' }"
        text = FLEET.replace("{ topology", f"{{ {new}, topology", 1)
        write_fleet(
            tmp_path, text.replace('spec = "mocker"', f'spec = "mocker"\nchanges = {{ {new} }}', 1)
        )
        one = supervisor_of(file, state_dir)
        await one.start()
        try:
            await until(one, lambda _: "tiny-b is replaced later: no other" in caplog.text)
            await until(
                one, lambda status: deployment(status, "tiny-a")["state"] == "crash-looping"
            )
            assert before["tiny-b/frontend"] == pids(await one.status())["tiny-b/frontend"]
            assert listed(one, state_dir) == ["tiny-b"]
            break_processes(tmp_path)
            await one.restart("tiny-a", "frontend")
            status = await until(one, is_ready)
            assert set(pids(status).values()).isdisjoint(before.values())
        finally:
            await one.close(stop=True)


async def test_of_a_deployment_that_is_gone_nothing_is_kept_but_its_last_words(tmp_path):
    state_dir = tmp_path / "state"
    file = write_fleet(tmp_path)
    async with cleaned(file, state_dir) as folder:
        await left_running(file, state_dir)
        write_fleet(tmp_path, ONE)
        one = supervisor_of(file, state_dir)
        await one.start()
        try:
            await until(one, lambda status: len(status["deployments"]) == 1)
            assert {entry.name for entry in folder.discovery("x").parent.iterdir()} == {"tiny-b"}
            assert {entry.name for entry in (folder.folder / "models").iterdir()} == {"tiny-b"}
            assert folder.log_file("tiny-a", "frontend").exists()
        finally:
            await one.close(stop=True)


async def test_a_deployment_that_cannot_be_started_is_none(fleet, tmp_path):
    gone = find_spec("mocker", changes={"model": {"source": "./gone"}})
    async with running(fleet, tmp_path / "state") as one:
        for _ in range(2):  # it is asked for again, and may be there by then
            with pytest.raises(SpecMalformed, match="there is no"):
                one.add(PlannedDeployment("x", "a", gone))
        assert [planned.id for planned in one.deployments] == ["tiny-b"]
        assert one._ports._taken == set(one._state.ports())


async def test_what_cannot_be_started_takes_no_ports(fleet, tmp_path, monkeypatch):
    async with running(fleet, tmp_path / "state") as one:
        taken, really = set(one._ports._taken), Ports.take

        def short_of_ports(count):
            left = iter(range(count))

            def take(ports):
                if next(left, None) is None:
                    raise OSError("no port is free")
                return really(ports)

            return take

        for count in (0, 1, 2, 5):  # the frontend's, and three of each worker
            monkeypatch.setattr(Ports, "take", short_of_ports(count))
            with pytest.raises(OSError, match="no port is free"):
                one.add(PlannedDeployment("x", "a", find_spec("mocker")))
            with pytest.raises(OSError, match="no port is free"):
                await one.scale("tiny-b", "decode", 3)
            assert one._ports._taken == taken
            assert deployment(await one.status(), "tiny-b")["replicas"]["decode"] == 1
        assert [planned.id for planned in one.deployments] == ["tiny-b"]


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


async def test_what_a_process_started_in_a_session_of_its_own_belongs_to_it(tmp_path):
    inner = "[sys.executable, '-S', '-c', 'import time; time.sleep(600)']"
    outer = f"import subprocess, sys; subprocess.Popen({inner}, start_new_session=True).wait()"
    pid = processes.start(
        [sys.executable, "-S", "-c", outer],
        {},
        tmp_path / "log",
        fleet=str(tmp_path),
        name="x/y",
        record="told",
    )
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while not children(pid):
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        (one,) = processes.members(str(tmp_path))
        assert (one.name, one.identity.pid, one.record) == ("x/y", pid, b"told")
    finally:

        def found():
            return {one.identity: one.name for one in processes.members(str(tmp_path))}

        assert await processes.end_all(found, lambda name: 0, 5.0) == []
    assert processes.find(str(tmp_path)) == {}


def record_of(planned, **changes):
    return DeploymentRecord(20_000, planned, "/fleet", **changes)


PLANNED = PlannedDeployment("x", "a", find_spec("mocker"))
OTHER = PlannedDeployment("x", "a", find_spec("mocker", changes={"model": {"revision": "r2"}}))


@pytest.mark.parametrize(
    ("record", "planned", "lives", "becomes"),
    [
        (None, PLANNED, False, "start"),
        (record_of(PLANNED), PLANNED, True, "keep"),
        (record_of(PLANNED), OTHER, False, "start"),
        (record_of(PLANNED), OTHER, True, "replace"),
        (record_of(PLANNED, running=False), PLANNED, True, "drain"),
        (record_of(PLANNED, running=False), OTHER, False, "keep"),
        (record_of(PLANNED), None, True, "drain"),
        (record_of(PLANNED, running=False), None, True, "drain"),
        (record_of(PLANNED), None, False, "forget"),
    ],
)
def test_what_becomes_of_a_deployment(record, planned, lives, becomes):
    assert fate(record, planned, "/fleet", lives=lives) == becomes


def test_what_makes_other_processes():
    def changed(**changes):
        planned = PlannedDeployment("x", "b", find_spec("mocker", changes=changes))
        return not same_processes(record_of(PLANNED), planned, "/elsewhere")

    assert not changed()
    assert not changed(limits={"slots": 7})
    assert not changed(topology={"decode": {"replicas": 5}})
    assert changed(topology={"decode": {"replicas": 5, "sequences": 3}})
    assert changed(router={"session_affinity_seconds": 7})
    own = PlannedDeployment("x", "b", find_spec("mocker", changes={"model": {"source": "./m"}}))
    assert same_processes(record_of(own), own, "/fleet")
    assert not same_processes(record_of(own), own, "/elsewhere")  # another folder of that name


# -- what is broken around it


async def test_a_state_that_is_none_is_moved_aside_and_found_again(fleet, tmp_path, monkeypatch):
    monkeypatch.setattr(gateway, "sys", SimpleNamespace(executable=interpreter(tmp_path)))
    write_fleet(tmp_path, ONE.replace("enabled = false", "port = 0\ncontrol_port = 0"))
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        await left_running(fleet, state_dir)
        found = processes.find(str(folder.folder))
        assert len(found) == 4
        state = folder.load()
        folder.state_file.write_text("{")
        assert await left_running(fleet, state_dir)
        assert processes.find(str(folder.folder)) == found
        assert folder.load() == state
        assert folder.state_file.with_suffix(".broken").read_text() == "{"

        folder.state_file.write_text("[" * 100_000)
        await bring_down(folder)
        assert processes.find(str(folder.folder)) == {}


async def test_down_says_what_it_could_not_end(fleet, tmp_path, monkeypatch):
    state_dir = tmp_path / "state"
    async with cleaned(fleet, state_dir) as folder:
        before = await left_running(fleet, state_dir)
        held = before["tiny-b/decode-0"]
        really = processes.signal_group

        def signalled(process, number):
            if process.pid != held:
                really(process, number)

        monkeypatch.setattr(processes, "signal_group", signalled)
        monkeypatch.setattr(processes, "KILL_SECONDS", 0.01)
        monkeypatch.setattr("prime_inference.fleet.launcher.ending.GRACE_SECONDS", 0.3)
        with pytest.raises(FleetRefused, match=f"decode-0 .process {held}"):
            await bring_down(folder)
        monkeypatch.undo()
        await bring_down(folder)
        assert processes.identity_of(held) is None


async def test_a_full_disk_is_told_and_ends_nothing(fleet, tmp_path, monkeypatch):
    state_dir = tmp_path / "state"
    async with running(fleet, state_dir) as one:
        folder = StateFolder(state_dir / "fleets" / "test")

        def full(path, *_, **__):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        with monkeypatch.context() as patched:
            patched.setattr("prime_inference.fleet.launcher.state.replace_file", full)
            patched.setattr("prime_inference.fleet.ready.replace_file", full)
            async with listening(one, folder):
                status = await ask(folder, Command("scale", "tiny-b", "decode", 2))
                assert status["unwritten"] == {"state.json": "No space left on device"}
                await ask(folder, Command("drain", "tiny-b"))
            status = await until(one, lambda status: all_in(status, "stopped"))
            assert status["unwritten"].keys() == {"state.json", "deployments.json"}
        await until(one, lambda status: not status["unwritten"])
        assert listed(one, state_dir) == []
        state = folder.load()
        assert state is not None
        assert not state.deployments["tiny-b"].running


async def test_what_cannot_be_started_holds_up_nothing_that_lives(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "AGAIN_SECONDS", 0.05)
    file, state_dir = write_fleet(tmp_path, ONE), tmp_path / "state"
    async with cleaned(file, state_dir):
        before = await left_running(file, state_dir)
        write_fleet(tmp_path)  # with tiny-a, which is new
        up, failures = RunningDeployment.up, [OSError(errno.ENOSPC, "No space left")] * 3

        def failing(self):
            if self.planned.id == "tiny-a" and failures:
                raise failures.pop()
            up(self)

        monkeypatch.setattr(RunningDeployment, "up", failing)
        one = supervisor_of(file, state_dir)
        await one.start()
        try:
            status = await until(one, lambda status: all_in(status, "ready"))
            assert before.items() <= pids(status).items()
            assert caplog.text.count("tiny-a cannot be completed now") == 1
        finally:
            await one.close(stop=True)


# -- who answers


async def test_up_does_not_take_another_supervisor_for_its_own(fleet, tmp_path):
    state_dir = tmp_path / "state"
    async with running(fleet, state_dir) as one:
        folder = StateFolder(state_dir / "fleets" / "test")
        async with listening(one, folder):
            await until_ready(folder, PATIENCE_SECONDS, supervisor=os.getpid())
            with pytest.raises(FleetRunning, match=f"Process {os.getpid()} supervises"):
                await until_ready(folder, PATIENCE_SECONDS, supervisor=os.getpid() + 1)
        second = supervisor_of(fleet, state_dir)
        with pytest.raises(FleetRunning, match=f"Process {os.getpid()} supervises"):
            await second.start()
        await second.close(stop=False)


async def test_a_supervisor_that_says_nothing_is_not_waited_for(tmp_path):
    folder = StateFolder(tmp_path)
    folder.lock_file.write_text("4711\n")
    answers: list[bytes] = []

    async def serve(reader, writer):
        await reader.readline()
        for answer in answers:
            writer.write(answer)
            await asyncio.sleep(0.05)
        if answers:
            writer.transport.abort()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_unix_server(serve, folder.socket)
    try:
        with pytest.raises(FleetFrozen, match="process 4711") as caught:
            await ask(folder, Command("status"), silence_seconds=0.05)
        assert "kill -CONT 4711" in caught.value.hint
        answers[:] = [b"\n"] * 4 + [b'{"status": {"fleet": "x"}}\n']  # it is at work
        assert await ask(folder, Command("status"), silence_seconds=5.0) == {"fleet": "x"}
        answers[:] = [b"\n"]
        with pytest.raises(FleetNotRunning):  # it was killed
            await ask(folder, Command("status"), silence_seconds=5.0)
    finally:
        server.close()
