"""The launcher, over real child processes that stand in for Dynamo's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from prime_inference.fleet.caches import asks_file, parse_reports
from prime_inference.fleet.errors import FleetNotRunning, FleetRefused, FleetRunning
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.control import Command, ask, listening
from prime_inference.fleet.launcher.ending import end_without_supervisor
from prime_inference.fleet.launcher.keeper import PROBES_MISSED, Keeper
from prime_inference.fleet.launcher.lifecycle import Lifecycle, Readiness
from prime_inference.fleet.launcher.listeners import listens
from prime_inference.fleet.launcher.ports import FIRST, LAST, Ports
from prime_inference.fleet.launcher.readiness import parse_readiness
from prime_inference.fleet.launcher.run import bring_down, fleet_folder
from prime_inference.fleet.launcher.state import ProcessRecord
from prime_inference.fleet.local import Process
from tests.fleet.fleets import (
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


async def test_a_fleet_comes_up_and_is_listed_for_gateways(tmp_path):
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        status = await supervisor.status()
        assert deployment(status, "tiny-a")["workers"] == {"prefill": 2, "decode": 2}
        assert len(pids(status)) == 5 + 3
        await asyncio.sleep(0.3)
        assert listed(supervisor, tmp_path / "state") == ["tiny-a", "tiny-b"]


async def until_written(file):
    end = time.monotonic() + PATIENCE_SECONDS
    while not file.exists():
        assert time.monotonic() < end, "no cache reports"
        await asyncio.sleep(0.05)
    return parse_reports(file.read_bytes())


async def test_what_the_caches_do_is_written_when_a_gateway_asks(tmp_path):
    file = write_fleet(tmp_path)
    async with running(file, tmp_path / "state") as supervisor:
        folder = fleet_folder(tmp_path / "state", supervisor.fleet)
        assert not folder.caches_file.exists()
        asks_file(folder.caches_file).touch()
        found = await until_written(folder.caches_file)
        assert found.reports.keys() == {"tiny-a", "tiny-b"}
        assert time.time() - found.taken_at < PATIENCE_SECONDS
    assert not folder.caches_file.exists()
    assert not asks_file(folder.caches_file).exists()


async def test_a_worker_that_is_killed_is_started_again(tmp_path):
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        before = pids(await supervisor.status())
        os.kill(before["tiny-a/decode-0"], signal.SIGKILL)
        # how long it is missing depends on the machine: what stays is that it was restarted
        after = pids(
            await until(
                supervisor,
                lambda status: (
                    all_in(status, "ready")
                    and pids(status)["tiny-a/decode-0"] != before["tiny-a/decode-0"]
                ),
            )
        )
        changed = {name for name in after if after[name] != before[name]}
        assert changed == {"tiny-a/decode-0"}


async def test_a_dead_frontend_leaves_the_list_and_comes_back_where_it_was(tmp_path):
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        before = await supervisor.status()
        os.kill(pids(before)["tiny-b/frontend"], signal.SIGSTOP)
        await until(supervisor, lambda status: deployment(status, "tiny-b")["state"] == "failing")
        await asyncio.sleep(0.3)
        assert listed(supervisor, tmp_path / "state") == ["tiny-a"]
        os.kill(pids(before)["tiny-b/frontend"], signal.SIGKILL)
        after = await until(supervisor, lambda status: all_in(status, "ready"))
        assert deployment(after, "tiny-b")["base_url"] == deployment(before, "tiny-b")["base_url"]


async def test_a_pool_grows_and_shrinks(tmp_path):
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        await supervisor.scale("tiny-b", "decode", 3)
        grown = await until(
            supervisor, lambda status: deployment(status, "tiny-b")["workers"].get("decode") == 3
        )
        kept = pids(grown)["tiny-b/decode-0"]
        await supervisor.scale("tiny-b", "decode", 1)
        assert supervisor._ports._taken == set(supervisor._state.ports())
        shrunk = await until(
            supervisor, lambda status: deployment(status, "tiny-b")["workers"].get("decode") == 1
        )
        assert pids(shrunk)["tiny-b/decode-0"] == kept
        with pytest.raises(FleetRefused, match="no pool 'decoder': it has prefill, decode"):
            await supervisor.scale("tiny-b", "decoder", 1)
        with pytest.raises(FleetRefused, match="1 to 64 workers, not 0"):
            await supervisor.scale("tiny-b", "decode", 0)


async def test_a_drain_waits_for_answers_in_flight_and_a_restart_undoes_it(tmp_path):
    state_dir = tmp_path / "state"
    async with running(write_fleet(tmp_path), state_dir) as supervisor:
        folder = fleet_folder(state_dir, supervisor.fleet)
        in_flight = folder.discovery("tiny-b") / "in-flight"
        in_flight.write_text("1")
        draining = asyncio.create_task(supervisor.drain("tiny-b"))
        await until(supervisor, lambda status: deployment(status, "tiny-b")["state"] == "draining")
        await asyncio.sleep(0.3)
        assert listed(supervisor, state_dir) == ["tiny-a"]
        await asyncio.sleep(1.5)  # longer than it waits for gateways to notice
        assert not draining.done()
        in_flight.write_text("0")
        await draining
        status = await until(
            supervisor, lambda status: deployment(status, "tiny-b")["state"] == "stopped"
        )
        assert not deployment(status, "tiny-b")["wanted"]
        await supervisor.restart("tiny-b", None)
        await until(supervisor, lambda status: all_in(status, "ready"))


async def test_a_rolling_restart_replaces_every_worker_and_no_frontend(tmp_path):
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        before = pids(await supervisor.status())
        await supervisor.restart("tiny-b", None)
        after = pids(await supervisor.status())
        changed = {name for name in after if after[name] != before[name]}
        assert changed == {"tiny-b/prefill-0", "tiny-b/decode-0"}
        with pytest.raises(FleetRefused, match="no process 'decode-7'"):
            await supervisor.restart("tiny-b", "decode-7")
        with pytest.raises(FleetRefused, match="no deployment 'tiny-c': there are tiny-a, tiny-b"):
            await supervisor.restart("tiny-c", None)


async def test_processes_outlive_a_killed_supervisor_and_the_next_one_takes_them_over(tmp_path):
    file, state_dir = write_fleet(tmp_path), tmp_path / "state"
    async with cleaned(file, state_dir) as folder:
        first = await asyncio.create_subprocess_exec(
            *[
                sys.executable, "-m", "prime_inference.cli", "inference", "fleet", "up", str(file),
                "--state-dir", str(state_dir), "--python", interpreter(tmp_path), "-o", "json",
            ],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert first.stdout is not None
        document = await first.stdout.readuntil(b"\n}\n")
        before = pids(msgspec.json.decode(document))
        first.kill()
        await first.wait()
        assert all(processes.identity_of(pid) for pid in before.values())
        with pytest.raises(FleetNotRunning):
            await ask(folder, Command("status"))

        second = supervisor_of(file, state_dir)
        await second.start()
        try:
            after = pids(await until(second, lambda status: all_in(status, "ready")))
            assert after == before
            os.kill(after["tiny-a/prefill-1"], signal.SIGKILL)  # it watches what it did not start
            await until(
                second, lambda status: pids(status)["tiny-a/prefill-1"] not in (0, *before.values())
            )
        finally:
            await second.close(stop=True)
        assert processes.find(str(folder.folder)) == {}
        assert not any(processes.identity_of(pid) for pid in before.values())


async def test_a_fleet_without_a_supervisor_can_be_ended(tmp_path):
    file, state_dir = write_fleet(tmp_path), tmp_path / "state"
    async with cleaned(file, state_dir) as folder:
        supervisor = supervisor_of(file, state_dir)
        await supervisor.start()
        await until(supervisor, lambda status: all_in(status, "ready"))
        await supervisor.close(stop=False)
        assert len(processes.find(str(folder.folder))) == 8
        await bring_down(folder)
        assert processes.find(str(folder.folder)) == {}


async def test_processes_that_no_file_names_any_more_are_ended(tmp_path):
    file, state_dir = write_fleet(tmp_path), tmp_path / "state"
    async with cleaned(file, state_dir) as folder:
        first = supervisor_of(file, state_dir)
        await first.start()
        await until(first, lambda status: all_in(status, "ready"))
        await first.close(stop=False)
        text = file.read_text()
        write_fleet(tmp_path, text[: text.rindex("[[deployment]]")])
        async with running(file, state_dir):
            names = processes.find(str(folder.folder))
            assert {name.partition("/")[0] for name in names} == {"tiny-a"}


async def test_a_fleet_has_one_supervisor(tmp_path):
    file, state_dir = write_fleet(tmp_path), tmp_path / "state"
    async with running(file, state_dir):
        second = supervisor_of(file, state_dir)
        with pytest.raises(FleetRunning):
            await second.start()
        await second.close(stop=False)
        with pytest.raises(FleetRunning):
            await end_without_supervisor(fleet_folder(state_dir, second.fleet))


async def test_commands_over_the_socket(tmp_path):
    state_dir = tmp_path / "state"
    async with running(write_fleet(tmp_path), state_dir) as supervisor:
        folder = fleet_folder(state_dir, supervisor.fleet)
        async with listening(supervisor, folder):
            assert (folder.socket.stat().st_mode & 0o777) == 0o600
            status = await ask(folder, Command("status"))
            assert all_in(status, "ready")
            with pytest.raises(FleetRefused, match="no deployment 'x'"):
                await ask(folder, Command("drain", deployment="x"))
            reader, writer = await asyncio.open_unix_connection(folder.socket)
            writer.write(b"make coffee\n")
            assert b"not a command" in await reader.readline()
            writer.close()
            await bring_down(folder)
        assert supervisor.finished.is_set()


async def test_commands_reach_a_fleet_whose_folder_lies_deep(tmp_path):
    state_dir = tmp_path.joinpath(*["a-folder-with-a-long-name"] * 5)
    async with running(write_fleet(tmp_path), state_dir) as supervisor:
        folder = fleet_folder(state_dir, supervisor.fleet)
        async with listening(supervisor, folder):
            assert all_in(await ask(folder, Command("status")), "ready")


# -- its parts


async def test_a_frozen_process_is_replaced_and_the_log_names_its_deployment(tmp_path, caplog):
    """It answered once and then no more; one that never answered may still be loading."""
    answers = iter([True] + [False] * PROBES_MISSED)

    def start(record):
        argv = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
        return processes.start(argv, {}, tmp_path / "log", fleet=str(tmp_path), name="x")

    async def responds(record):
        return next(answers, False)

    seen = []
    record = ProcessRecord(Process("x", "x", (), {}, 0))
    keeper = Keeper(
        record,
        start,
        lambda: seen.append(record.pid),
        responds,
        tmp_path / "log",
        deployment="tiny-a",
        probe_seconds=0.02,
    )
    keeper.run()
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while len(seen) < 2:
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        assert processes.identity_of(seen[0]) is None
        assert keeper.alive
        assert "deployment tiny-a: x answers no more" in caplog.text
        assert keeper.last_exit is not None
        assert keeper.last_exit.cause == "killed, since it answered no more"
    finally:
        await keeper.stop(1.0)
    assert not keeper.alive


def test_an_identity_is_not_a_later_process_of_the_same_id():
    mine = processes.identity_of(os.getpid())
    assert mine is not None
    assert mine.alive
    assert not processes.Identity(mine.pid, mine.started + 1).alive
    processes.signal_group(processes.Identity(os.getpid(), 1), signal.SIGKILL)  # not sent


@pytest.mark.parametrize(
    ("running_", "alive", "seen", "was", "state"),
    [
        (True, 0, None, False, "starting"),
        (True, 3, Readiness(False), False, "starting"),
        (True, 3, Readiness(True, {"decode": 2}), False, "ready"),
        (True, 3, Readiness(True, {"decode": 1}), False, "degraded"),
        (True, 3, None, True, "failing"),
        (False, 2, None, True, "draining"),
        (False, 0, None, True, "stopped"),
    ],
)
def test_the_state_of_a_deployment(running_, alive, seen, was, state):
    lifecycle = Lifecycle(was_ready=was)
    found = lifecycle.observe(running=running_, alive=alive, replicas={"decode": 2}, seen=seen)
    assert found == state
    assert lifecycle.was_ready == (running_ and (was or state in ("ready", "degraded")))


def test_a_deployment_whose_process_ends_at_every_start_is_crash_looping_until_it_was_ready():
    lifecycle = Lifecycle()

    def look(seen):
        return lifecycle.observe(
            running=True, alive=1, replicas={"decode": 2}, seen=seen, crash_looping=True
        )

    assert look(None) == look(Readiness(False)) == "crash-looping"
    assert look(Readiness(True, {"decode": 1})) == "degraded"
    assert look(None) == "failing"


def test_a_deployment_is_down_after_three_looks_in_a_row_and_a_drained_one_never():
    lifecycle = Lifecycle()

    def look(seen, running=True):
        lifecycle.observe(running=running, alive=1, replicas={}, seen=seen)
        return lifecycle.down

    assert [look(None) for _ in range(5)] == [False] * 5  # it has not been ready yet
    look(Readiness(True))
    assert [look(seen) for seen in (None, Readiness(False), None)] == [False, False, True]
    assert not look(Readiness(True))
    assert [look(None) for _ in range(3)] == [False, False, True]
    assert not look(None, running=False)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], Readiness(False)),
        ({}, Readiness(False)),
        ({"ready": "yes"}, Readiness(False)),
        (
            {
                "ready": True,
                "namespaces": {
                    "a": {"worker_types": {"decode": {"workers": 2}}},
                    "b": {"worker_types": {"decode": {"workers": 1}, "prefill": {}}},
                },
            },
            Readiness(True, {"decode": 3, "prefill": 0}),
        ),
    ],
)
def test_readiness_is_read_from_what_a_frontend_says(document, expected):
    assert parse_readiness(document) == expected


def test_ports_are_given_out_once_and_fit_a_signed_number():
    ports = Ports([FIRST])
    taken = {ports.take() for _ in range(100)}
    assert len(taken) == 100
    assert min(taken) > FIRST
    assert max(taken) <= LAST < 1 << 15


def test_a_port_that_was_given_back_is_given_out_again():
    ports = Ports(range(FIRST, LAST + 1))
    with pytest.raises(OSError, match="no port"):
        ports.take()
    ports.give_back([LAST - 7])
    assert ports.take() == LAST - 7


def orphan() -> processes.Identity | None:
    """A process of a group whose leader has ended."""
    leader = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 600 >&- & echo $!"], stdout=subprocess.PIPE, start_new_session=True
    )
    told, _ = leader.communicate()
    return processes.identity_of(int(told))


async def test_what_outlived_the_leader_of_its_group_is_ended():
    """A signal between fork and exec is lost: the leader ends by it, and its child does not."""
    child = orphan()
    assert child is not None
    assert child.alive
    async with asyncio.timeout(PATIENCE_SECONDS):
        await processes.end_group(child, 30)
    assert not child.alive


# -- whose port it is


class Asked(list[bytes]):
    port = 0


@contextlib.asynccontextmanager
async def stranger(port):
    """Another program that has a port, and says what a frontend would."""
    types = '{"prefill":{"workers":1},"decode":{"workers":1}}'
    body = f'{{"ready":true,"namespaces":{{"d":{{"worker_types":{types}}}}}}}'
    asked = Asked()

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    asked.port = server.sockets[0].getsockname()[1]
    try:
        yield asked
    finally:
        server.close()


async def test_a_port_that_somebody_else_has_by_then_is_given_up(tmp_path):
    state_dir = tmp_path / "state"
    async with running(write_fleet(tmp_path), state_dir) as supervisor:
        before = deployment(await supervisor.status(), "tiny-b")
        await supervisor.drain("tiny-b")
        ports = {one["name"]: one["port"] for one in before["processes"]}
        async with stranger(ports["frontend"]) as asked, stranger(ports["decode-0"]):
            await supervisor.restart("tiny-b", None)
            status = await until(supervisor, lambda status: all_in(status, "ready"))
            after = deployment(status, "tiny-b")
            assert asked == []
        moved = {one["name"] for one in after["processes"] if one["port"] != ports[one["name"]]}
        assert moved == {"frontend", "decode-0"}
        assert after["base_url"] != before["base_url"]
        folder = fleet_folder(state_dir, supervisor.fleet)
        await until(
            supervisor,
            lambda _: after["base_url"] in folder.ready_file.read_text(),
        )
        assert before["base_url"] not in folder.ready_file.read_text()
        assert supervisor._ports._taken == set(supervisor._state.ports())


async def test_a_process_that_lost_its_port_gets_another_when_it_is_started_again(tmp_path):
    """As where two fleets come up at one time and are given the same."""
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        before = deployment(await supervisor.status(), "tiny-b")["processes"][-1]
        name = f"tiny-b/{before['name']}"
        break_processes(tmp_path, name)
        os.kill(before["pid"], signal.SIGKILL)
        await until(
            supervisor,
            lambda status: deployment(status, "tiny-b")["processes"][-1]["restarts"] > 0,
        )
        async with stranger(before["port"]):
            break_processes(tmp_path)
            await until(
                supervisor,
                lambda status: (
                    all_in(status, "ready")
                    and deployment(status, "tiny-b")["processes"][-1]["port"] != before["port"]
                ),
            )


async def test_a_frontend_keeps_its_port_over_connections_of_before(tmp_path):
    """The kernel keeps what is left of them for a minute."""
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        before = deployment(await supervisor.status(), "tiny-b")
        port = before["processes"][0]["port"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        os.kill(before["processes"][0]["pid"], signal.SIGKILL)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        status = await until(
            supervisor,
            lambda status: (
                all_in(status, "ready")
                and pids(status)["tiny-b/frontend"] != before["processes"][0]["pid"]
            ),
        )
        assert deployment(status, "tiny-b")["base_url"] == before["base_url"]
        writer.close()


async def test_only_its_own_frontend_makes_a_deployment_ready(tmp_path):
    """One that lives may not have its port yet, and somebody else may have it."""
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        one = supervisor._deployments["tiny-b"]
        async with stranger(0) as asked:
            one._proven = None
            one.record.port = asked.port
            await until(supervisor, lambda _: asked and one.state == "failing")
            await until(supervisor, lambda _: listed(supervisor, tmp_path / "state") == ["tiny-a"])


async def test_who_listens_on_a_port(tmp_path):
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    pid = processes.start(sleeping, {}, tmp_path / "log", fleet=str(tmp_path), name="x/y")
    other, mine = processes.identity_of(pid), processes.identity_of(os.getpid())
    assert other is not None
    assert mine is not None
    try:
        assert listens(mine, port)
        assert not listens(other, port)
        server.close()
        assert not listens(mine, port)
    finally:
        await processes.end_group(other, 0)
        processes.reap(pid)
