"""A datacenter on this machine, over the launcher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.controller.reconcile import Found, InstanceState, Start
from prime_inference.fleet.fleet import DatacenterEntry, Fleet, GatewayEntry, PlannedDeployment
from prime_inference.fleet.launcher.control import listening
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.launcher.supervisor import Supervisor
from prime_inference.fleet.ready import replace_file

log = logging.getLogger(__name__)

STATES: dict[str, InstanceState] = {
    "crash-looping": "crash-looping",
    "ready": "ready",
    "degraded": "ready",
    "failing": "failing",
    "draining": "draining",
    "stopped": "draining",
}


class _Instance(Struct, frozen=True):
    """What must be known of an instance after a restart; under the name of the instance."""

    deployment: str
    content: str
    planned: PlannedDeployment


class LocalDatacenter:
    """Implements `controller.datacenter.Datacenter`. Start it, close it.

    Instances outlive it as processes do: the next one of the same folder takes them over.
    """

    def __init__(self, name: str, folder: StateFolder, *, python: str, base: Path) -> None:
        self.id = name
        self._folder = folder
        self._file = folder.folder / "instances.json"
        self._python = python
        self._base = base
        self._instances: dict[str, _Instance] = {}
        self._supervisor: Supervisor | None = None
        self._drains: dict[str, asyncio.Task[None]] = {}
        self._socket = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Raises FleetRunning, OSError."""
        self._folder.create()
        if self._file.exists():
            self._instances = msgspec.json.decode(
                self._file.read_bytes(), type=dict[str, _Instance]
            )
        fleet = Fleet(
            self.id,
            (DatacenterEntry(self.id),),
            tuple(one.planned for one in self._instances.values()),
            GatewayEntry(enabled=False),
        )
        supervisor = Supervisor(
            fleet, self._base / f"{self.id}.toml", self._folder, python=self._python
        )
        await supervisor.start()
        await supervisor.looked.wait()  # what runs already must not look as if it just started
        self._supervisor = supervisor
        await self._socket.enter_async_context(listening(supervisor, self._folder))

    async def close(self, *, stop: bool) -> None:
        """Let go of the processes, or end them."""
        await self._socket.aclose()
        for drain in self._drains.values():
            drain.cancel()
        if self._supervisor is not None:
            await self._supervisor.close(stop=stop)
        if stop:
            self._file.unlink(missing_ok=True)

    async def instances(self) -> Sequence[Found]:
        assert self._supervisor is not None, "not open"
        status = await self._supervisor.status()
        states = {one["id"]: one for one in status["deployments"]}
        return [
            Found(
                name=name,
                deployment=one.deployment,
                content=one.content,
                datacenter=self.id,
                model=one.planned.spec.model.id,
                state=STATES.get(states[name]["state"], "starting"),
                base_url=states[name]["base_url"],
                why=_why(states[name]),
                down=states[name]["down"],
                planned=one.planned,
            )
            for name, one in self._instances.items()
            if name in states
        ]

    async def cache_reports(self) -> dict[str, CacheReport]:
        """What the caches of each instance did; all processes are asked now."""
        assert self._supervisor is not None, "not open"
        return await self._supervisor.cache_reports()

    async def start(self, start: Start) -> None:
        assert self._supervisor is not None, "not open"
        planned = PlannedDeployment(start.name, self.id, start.planned.spec)
        self._instances[start.name] = _Instance(start.planned.id, start.content, planned)
        self._save()
        self._supervisor.add(planned)

    def lacking(self, kept: Sequence[Start]) -> Sequence[Start]:
        """None: the supervisor keeps their processes."""
        return ()

    async def drain(self, found: Found) -> None:
        if found.name not in self._drains:
            self._drains[found.name] = asyncio.create_task(self._drain(found.name))

    async def _drain(self, name: str) -> None:
        assert self._supervisor is not None, "not open"
        await self._supervisor.remove(name)
        del self._instances[name], self._drains[name]
        self._save()

    def _save(self) -> None:
        replace_file(self._file, msgspec.json.encode(self._instances))


def _why(status: dict[str, Any]) -> str:
    """The processes that do not run, and how they ended."""
    ended = []
    for one in status["processes"]:
        if one["state"] in ("waiting", "crash-looping") and one["last_exit"] is not None:
            words = "".join(f": {line}" for line in one["last_exit"]["log"][-1:])
            ended.append(f"{one['name']} ({one['last_exit']['cause']}{words})")
    return ", ".join(ended)
