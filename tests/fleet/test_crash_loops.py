"""A process that dies whenever it is started: what is said of it, and what ends that."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from prime_inference.fleet.errors import CrashLooping, FleetNotRunning, SpecImpossible
from prime_inference.fleet.fleet import read_fleet
from prime_inference.fleet.launcher import gateway, processes
from prime_inference.fleet.launcher.control import Command, ask, listening
from prime_inference.fleet.launcher.exits import LAST_LINES, cause_of, last_words
from prime_inference.fleet.launcher.keeper import CRASH_LOOP, Keeper
from prime_inference.fleet.launcher.run import bring_down, fleet_folder, until_ready
from prime_inference.fleet.launcher.state import ProcessRecord, StateFolder
from prime_inference.fleet.local import Process
from tests.fleet.fleets import (
    FLEET,
    PATIENCE_SECONDS,
    deployment,
    listed,
    supervisor_of,
    until,
    write_fleet,
)
from tests.fleet.stand_in import break_processes, interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")

WORDS = "error: unrecognized arguments: --nope"


def process(status, name):
    return next(
        one for each in status["deployments"] for one in each["processes"] if one["name"] == name
    )


async def test_a_worker_that_dies_at_start_is_told_with_its_last_words_and_mended_by_hand(tmp_path):
    break_processes(tmp_path, "tiny-b/decode-0")
    supervisor = supervisor_of(write_fleet(tmp_path), tmp_path / "state")
    folder = fleet_folder(tmp_path / "state", supervisor.fleet)
    await supervisor.start()
    try:
        async with listening(supervisor, folder):
            with pytest.raises(CrashLooping, match="tiny-b/decode-0 is crash-looping") as caught:
                await until_ready(folder, PATIENCE_SECONDS)
            assert caught.value.cause == "exit status 1"
            assert caught.value.log == ("loading", WORDS)
            assert "prime inference fleet restart tiny-b decode-0" in caught.value.hint
            await until(
                supervisor,
                lambda found: (
                    deployment(found, "tiny-b")["state"] == "crash-looping"
                    and listed(supervisor, tmp_path / "state") == ["tiny-a"]  # the others serve
                ),
            )
            with pytest.raises(CrashLooping):  # the error keeps its type on its way
                await ask(folder, Command("restart", deployment="tiny-b", process="decode-0"))

            break_processes(tmp_path)
            await ask(folder, Command("restart", deployment="tiny-b"))
            mended = process(await supervisor.status(), "decode-0")
            assert (mended["restarts"], mended["last_exit"]) == (0, None)
    finally:
        await supervisor.close(stop=True)


async def test_a_worker_that_breaks_later_is_told_while_the_others_serve(tmp_path):
    supervisor = supervisor_of(write_fleet(tmp_path), tmp_path / "state")
    await supervisor.start()
    try:
        status = await until(
            supervisor, lambda found: deployment(found, "tiny-a")["state"] == "ready"
        )
        break_processes(tmp_path, "tiny-a/prefill-1")
        os.kill(process(status, "prefill-1")["pid"], 9)
        status = await until(
            supervisor, lambda found: process(found, "prefill-1")["state"] == "crash-looping"
        )
        assert deployment(status, "tiny-a")["state"] == "degraded"
        assert process(status, "prefill-1")["served"]
        assert process(status, "prefill-0")["restarts"] == 0
    finally:
        await supervisor.close(stop=True)


async def test_a_gateway_whose_port_another_fleets_gateway_has_is_not_taken_for_ready(
    tmp_path, monkeypatch
):
    """The other one answers there."""
    python = interpreter(tmp_path)
    monkeypatch.setattr(gateway, "sys", SimpleNamespace(executable=python))
    break_processes(tmp_path, "gateway/gateway")

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    one = FLEET[: FLEET.rindex("[[deployment]]")]
    file = write_fleet(tmp_path, one.replace("enabled = false", f"control_port = {port}"))
    supervisor = supervisor_of(file, tmp_path / "state")
    await supervisor.start()
    try:
        status = await until(supervisor, lambda found: found["gateway"]["state"] == "crash-looping")
        assert not status["gateway"]["ready"]
        assert not status["gateway"]["served"]
        assert status["gateway"]["last_exit"]["log"][-1] == WORDS
        await supervisor.restart("gateway", None)
        assert (await supervisor.status())["gateway"]["restarts"] == 0
    finally:
        await supervisor.close(stop=True)
        other.close()


async def test_up_gives_up_and_status_tells(tmp_path):
    break_processes(tmp_path, "tiny-b/prefill-0")
    file, state_dir = write_fleet(tmp_path), tmp_path / "state"
    command = [sys.executable, "-m", "prime_inference.cli", "inference", "fleet"]
    up = [*command, "up", str(file), "--detach", "--python", interpreter(tmp_path), "-o", "json"]
    folder = fleet_folder(state_dir, read_fleet(file))
    try:
        done = await asyncio.to_thread(
            subprocess.run, [*up, "--state-dir", str(state_dir)], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (1, "")
        notes, _, error = done.stderr.partition("{")
        assert "tiny-b/prefill-0 ended: 0 restarts, exit status 1 after" in notes
        error = json.loads("{" + error)["error"]
        assert error["code"] == "crash_looping"
        assert WORDS in error["message"]
        assert "prime inference fleet logs tiny-b prefill-0" in error["hint"]
        shown = await asyncio.to_thread(
            subprocess.run,
            [*command, "status", "--state-dir", str(state_dir), "--plain"],
            capture_output=True,
            text=True,
        )
        (line,) = [one for one in shown.stdout.splitlines() if "tiny-b/prefill-0" in one]
        assert "crash-looping" in line
        assert line.endswith(WORDS)
        assert folder.socket.exists()  # it goes on
    finally:
        await bring_down(folder)


async def test_a_supervisor_that_ended_is_not_waited_for(tmp_path):
    folder = StateFolder(tmp_path / "fleet")
    folder.create()
    (folder.logs / "supervisor.log").write_text("model.source './gone': there is no such path\n")
    with pytest.raises(FleetNotRunning, match="there is no such path"):
        await until_ready(folder, PATIENCE_SECONDS, supervised=lambda: False)


# -- the count


async def kept(tmp_path, monkeypatch, serves):
    """A keeper of a process that ends at once, after CRASH_LOOP + 1 ends. Every run counts as
    long, so that only serving matters."""
    monkeypatch.setattr("prime_inference.domain.backoff.HEALTHY_SECONDS", 1e-9)
    monkeypatch.setattr("prime_inference.domain.backoff.PAUSES_SECONDS", (0.01,))

    def start(record):
        argv = ["/bin/sh", "-c", "echo $$; exit 3"]
        return processes.start(argv, {}, tmp_path / "log", fleet=str(tmp_path), name="x")

    async def responds(record):
        return True

    def started():
        if serves:
            keeper.note_serving()

    keeper = Keeper(
        ProcessRecord(Process("x", "x", (), {}, 0)), start, started, responds, tmp_path / "log"
    )
    keeper.run()
    end = time.monotonic() + PATIENCE_SECONDS
    while keeper.restarts <= CRASH_LOOP:
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    state = keeper.status()
    await keeper.stop(1.0)
    return state


async def test_a_process_that_takes_long_to_fail_is_crash_looping_too(tmp_path, monkeypatch):
    """As a large model, that is loaded for minutes before memory runs out."""
    state = await kept(tmp_path, monkeypatch, serves=False)
    assert (state["state"], state["served"]) == ("crash-looping", False)
    assert (state["last_exit"]["status"], len(state["last_exit"]["log"])) == (3, 1)  # of its run


async def test_a_process_that_served_long_between_its_ends_is_not(tmp_path, monkeypatch):
    state = await kept(tmp_path, monkeypatch, serves=True)
    assert (state["state"] in ("running", "waiting"), state["served"]) == (True, True)


async def test_a_program_that_is_not_there_is_told(tmp_path):
    def start(record):
        return processes.start(
            [str(tmp_path / "gone")], {}, tmp_path / "log", fleet=str(tmp_path), name="x"
        )

    async def responds(record):
        return False

    record = ProcessRecord(Process("x", "x", (), {}, 0))
    keeper = Keeper(record, start, lambda: None, responds, tmp_path / "log")
    keeper.run()
    end = time.monotonic() + PATIENCE_SECONDS
    while keeper.state != "crash-looping":
        assert time.monotonic() < end
        await asyncio.sleep(0.01)
    await keeper.stop(1.0)
    assert keeper.last_exit is not None
    assert keeper.last_exit.cause == "cannot be started: No such file or directory"
    assert keeper.status()["state"] == "stopped"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (2, "exit status 2"),
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL, as the kernel does when memory is short"),
        (-40, "killed by signal 40"),
        (None, "ended, how is not known"),
    ],
)
def test_how_it_ended_is_told_in_words(status, words):
    assert cause_of(status) == words


def test_last_words_are_of_the_last_run_bounded_and_fit_for_a_terminal(tmp_path):
    log = tmp_path / "log"
    log.write_text("of the run before\n")
    since = log.stat().st_size
    with log.open("a") as file:
        file.write("\x1b[31mred\x1b[0m\n\n")
        file.writelines(f"{number}\n" for number in range(LAST_LINES - 2))
        file.write("x" * 5000)
    words = last_words(log, since)
    assert words[0] == "red"
    assert (len(words), len(words[-1])) == (LAST_LINES, 300)
    assert last_words(tmp_path / "gone", 0) == ()


def test_no_deployment_has_the_gateways_name(tmp_path):
    with pytest.raises(SpecImpossible, match="gateway in front"):
        read_fleet(write_fleet(tmp_path, FLEET.replace('id = "tiny-b"', 'id = "gateway"')))
