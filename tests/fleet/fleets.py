"""Fleets of stand-ins, started and looked at."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

from prime_inference.fleet.fleet import read_fleet
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.ending import end_without_supervisor
from prime_inference.fleet.launcher.run import fleet_folder
from prime_inference.fleet.launcher.supervisor import Supervisor
from prime_inference.fleet.ready import parse_ready
from tests.fleet.stand_in import interpreter

FLEET = """
name = "test"
[gateway]
enabled = false
[[datacenter]]
id = "dc-a"
[[datacenter]]
id = "dc-b"
[[deployment]]
id = "tiny-a"
datacenter = "dc-a"
spec = "mocker"
[[deployment]]
id = "tiny-b"
datacenter = "dc-b"
spec = "mocker"
changes = { topology = { prefill = { replicas = 1 }, decode = { replicas = 1 } } }
"""

PATIENCE_SECONDS = 40.0  # a machine three times slower, under load


def write_fleet(folder: Path, text: str = FLEET) -> Path:
    file = folder / "fleet.toml"
    file.write_text(text)
    return file


def supervisor_of(file: Path, state_dir: Path) -> Supervisor:
    fleet = read_fleet(file)
    folder = fleet_folder(state_dir, fleet)
    return Supervisor(fleet, file, folder, python=interpreter(file.parent))


@contextlib.asynccontextmanager
async def running(file: Path, state_dir: Path):
    """A supervisor of a fleet that is whole; nothing of it is left after."""
    supervisor = supervisor_of(file, state_dir)
    folder = fleet_folder(state_dir, supervisor.fleet)
    try:
        await supervisor.start()
        await until(supervisor, lambda status: all_in(status, "ready"))
        yield supervisor
    finally:
        await supervisor.close(stop=True)
        assert processes.find(str(folder.folder)) == {}


@contextlib.asynccontextmanager
async def cleaned(file: Path, state_dir: Path):
    """Whatever happens inside, no process of the fleet is left after."""
    folder = fleet_folder(state_dir, read_fleet(file))
    try:
        yield folder
    finally:
        if folder.folder.exists():
            await end_without_supervisor(folder)


async def until(supervisor: Supervisor, holds) -> dict[str, Any]:
    """The first status for which `holds`; fails with the last one seen."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        status = await supervisor.status()
        if holds(status):
            return status
        assert time.monotonic() < end, status
        await asyncio.sleep(0.05)


def all_in(status: dict[str, Any], state: str) -> bool:
    return all(one["state"] == state for one in status["deployments"])


def deployment(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in status["deployments"] if one["id"] == name)


def pids(status: dict[str, Any]) -> dict[str, int]:
    return {
        f"{one['id']}/{process['name']}": process["pid"]
        for one in status["deployments"]
        for process in one["processes"]
    }


def listed(supervisor: Supervisor, state_dir: Path) -> list[str]:
    """Ids that the gateways are told."""
    folder = fleet_folder(state_dir, supervisor.fleet)
    return sorted(one.id for one in parse_ready(folder.ready_file.read_bytes()))
