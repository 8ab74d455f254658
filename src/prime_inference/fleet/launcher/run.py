"""What the commands `up` and `down` do, from start to end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prime_inference.fleet.errors import CrashLooping, FleetNotRunning, FleetRefused, FleetRunning
from prime_inference.fleet.fleet import Fleet, read_fleet
from prime_inference.fleet.launcher import gateway
from prime_inference.fleet.launcher.control import Command, ask, listening
from prime_inference.fleet.launcher.ending import end_without_supervisor
from prime_inference.fleet.launcher.exits import last_lines, require_hope
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.launcher.supervisor import Supervisor

LOOK_SECONDS = 0.1

Status = dict[str, Any]


async def supervise(
    file: Path,
    folder: StateFolder,
    *,
    python: str,
    announce: Callable[[Status], None],
    stuck: Callable[[CrashLooping], None],
) -> None:
    """Run a fleet until SIGINT or SIGTERM, which end it, or until `down` was asked for.

    `announce` is called once when everything is ready; `stuck`, once and before that, when a
    process keeps it from getting so. Raises FleetError, OSError.
    """
    supervisor = Supervisor(read_fleet(file), file, folder, python=python)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await supervisor.start()
    announcing = loop.create_task(_announce_when_ready(supervisor, announce, stuck))
    waits = [loop.create_task(stop.wait()), loop.create_task(supervisor.finished.wait())]
    try:
        async with listening(supervisor, folder):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (announcing, *waits):
            task.cancel()
        await supervisor.close(stop=not supervisor.finished.is_set())


def is_ready(status: Status) -> bool:
    """Whether every deployment that is wanted is whole and as the file has it, and the gateway
    answers."""
    front = status["gateway"]
    up = front is None or front["ready"]
    return up and all(
        (one["state"] == "ready" and not one["changed"]) or not one["wanted"]
        for one in status["deployments"]
    )


def require_all_hope(status: Status) -> None:
    """Raises CrashLooping if a process keeps the fleet from ever being whole."""
    if status["gateway"] is not None:
        require_hope(gateway.NAME, status["gateway"])
    for deployment in status["deployments"]:
        for process in deployment["processes"]:
            require_hope(deployment["id"], process)


async def until_ready(
    folder: StateFolder,
    seconds: float,
    *,
    progress: Callable[[Status], None] = lambda status: None,
    supervised: Callable[[], bool] = lambda: True,
    supervisor: int | None = None,
) -> Status:
    """The status of a running fleet once it is whole.

    `progress` is told of each look before. `supervised`: False once whoever was to supervise it
    has ended; `supervisor` is its process, where no other will do. Raises CrashLooping,
    FleetRefused, FleetNotRunning, FleetFrozen, and FleetRunning where it is another process.
    """
    until = time.monotonic() + seconds
    states: dict[str, str] = {}
    while True:
        expected = supervised()
        try:
            status = await ask(folder, Command("status"))
        except FleetNotRunning:
            if not expected:
                log = folder.logs / "supervisor.log"
                words = "\n  ".join(last_lines(log, 5)) if log.exists() else ""
                raise FleetNotRunning(f"The supervisor ended: see {log}.\n  {words}") from None
        else:
            if supervisor not in (None, status["supervisor"]):
                raise FleetRunning(
                    f"Process {status['supervisor']} supervises the fleet in {folder.folder}"
                    " already, with the file as it was when that began."
                )
            if is_ready(status):
                return status
            progress(status)
            require_all_hope(status)
            states = {one["id"]: one["state"] for one in status["deployments"]}
        if time.monotonic() > until:
            raise FleetRefused(f"The fleet is not whole after {seconds:.0f} s: {states}.")
        await asyncio.sleep(LOOK_SECONDS)


def detach(file: Path, folder: StateFolder, *, python: str) -> subprocess.Popen[bytes]:
    """Start a supervisor that outlives this process; it writes to supervisor.log."""
    folder.create()
    with (folder.logs / "supervisor.log").open("ab") as output:
        return subprocess.Popen(
            [
                sys.executable, "-m", "prime_inference.cli", "inference", "fleet", "up",
                str(file.absolute()), "--state-dir", str(folder.folder.parent.parent),
                "--python", python, "--silent",
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


async def bring_down(folder: StateFolder) -> None:
    """End a fleet, whether or not somebody supervises it. Raises FleetError: FleetRefused with what
    could not be ended."""
    try:
        await ask(folder, Command("down"))
    except FleetNotRunning:
        if not folder.folder.is_dir():
            raise
        await end_without_supervisor(folder)


def dynamo_python(environ: dict[str, str] | os._Environ[str], here: Path) -> str:
    """The interpreter that has Dynamo: PRIME_DYNAMO_PYTHON, else .envs/dynamo, else our own."""
    named = environ.get("PRIME_DYNAMO_PYTHON")
    if named:
        return named
    made = here / ".envs" / "dynamo" / "bin" / "python"
    return str(made) if made.exists() else sys.executable


def fleet_folder(state_dir: Path, fleet: Fleet) -> StateFolder:
    """Where a fleet of that name is kept."""
    return StateFolder(state_dir / "fleets" / fleet.name)


async def _announce_when_ready(
    supervisor: Supervisor,
    announce: Callable[[Status], None],
    stuck: Callable[[CrashLooping], None],
) -> None:
    told = False
    while not is_ready(status := await supervisor.status()):
        try:
            require_all_hope(status)
        except CrashLooping as error:  # it goes on: whatever else there is may serve
            if not told:
                stuck(error)
            told = True
        await asyncio.sleep(LOOK_SECONDS)
    announce(status)
