"""A datacenter on this machine, over the launcher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.controller.reconcile import (
    Found,
    InstanceState,
    Start,
    deployment_of,
    digest,
)
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import DatacenterEntry, Fleet, GatewayEntry, PlannedDeployment
from prime_inference.fleet.launcher.control import listening
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.launcher.supervisor import Supervisor
from prime_inference.reliability.background import Background, end

log = logging.getLogger(__name__)

AGAIN_SECONDS = 2.0  # after a drain that failed

STATES: dict[str, InstanceState] = {
    "crash-looping": "crash-looping",
    "ready": "ready",
    "degraded": "ready",
    "failing": "failing",
}


class LocalDatacenter:
    """Implements `controller.datacenter.Datacenter`. Start it, close it.

    Instances outlive it as processes do: the next one of the same folder takes them over, and
    drains on what was being drained. All that must be known of them is in the launcher's state.
    """

    def __init__(self, name: str, folder: StateFolder, *, python: str, base: Path) -> None:
        self.id = name
        self._folder = folder
        self._python = python
        self._base = base
        self._contents: dict[str, tuple[PlannedDeployment, str]] = {}  # by instance
        self._supervisor: Supervisor | None = None
        self._drains: dict[str, asyncio.Task[None]] = {}
        self._background = Background(time.monotonic)
        self._socket = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Raises FleetRunning, OSError."""
        self._folder.create()
        nothing = Fleet(self.id, (DatacenterEntry(self.id),), (), GatewayEntry(enabled=False))
        supervisor = Supervisor(
            nothing,
            self._base / f"{self.id}.toml",
            self._folder,
            python=self._python,
            goes_on=True,
        )
        try:
            await supervisor.start()
        except BaseException:
            await supervisor.close(stop=False)
            raise
        self._supervisor = supervisor
        await supervisor.looked.wait()  # what runs already must not look as if it just started
        await self._socket.enter_async_context(listening(supervisor, self._folder))

    async def close(self, *, stop: bool) -> None:
        """Let go of the processes, or end them. Raises FleetRefused."""
        await self._socket.aclose()
        await end(list(self._drains.values()))
        if self._supervisor is not None:
            await self._supervisor.close(stop=stop)

    async def instances(self) -> Sequence[Found]:
        assert self._supervisor is not None, "not open"
        planned = {one.id: one for one in self._supervisor.deployments}
        status = await self._supervisor.status()
        return [self._found(planned[one["id"]], one) for one in status["deployments"]]

    def _found(self, planned: PlannedDeployment, status: dict[str, Any]) -> Found:
        return Found(
            name=planned.id,
            deployment=deployment_of(planned.id),
            content=self._content(planned),
            datacenter=self.id,
            model=planned.spec.model.id,
            # one that was just added has not been looked at yet, and is not stopped
            state=STATES.get(status["state"], "starting") if status["wanted"] else "draining",
            base_url=status["base_url"],
            why=_why(status),
            down=status["down"],
            planned=planned,
        )

    def _content(self, planned: PlannedDeployment) -> str:
        known = self._contents.get(planned.id)
        if known is None or known[0] is not planned:
            known = self._contents[planned.id] = planned, digest(planned)
        return known[1]

    async def cache_reports(self) -> dict[str, CacheReport]:
        """What the caches of each instance did; all processes are asked now."""
        assert self._supervisor is not None, "not open"
        return await self._supervisor.cache_reports()

    async def start(self, start: Start) -> None:
        assert self._supervisor is not None, "not open"
        self._supervisor.add(PlannedDeployment(start.name, self.id, start.planned.spec))

    def lacking(self, kept: Sequence[Start]) -> Sequence[Start]:
        """None: the supervisor keeps their processes."""
        return ()

    async def drain(self, found: Found) -> None:
        name = found.name
        if name not in self._drains:
            self._drains[name] = self._background.start(f"drain {name}", lambda: self._drain(name))

    async def _drain(self, name: str) -> None:
        assert self._supervisor is not None, "not open"
        while True:
            try:
                await self._supervisor.remove(name)
                break
            except FleetRefused as error:
                log.warning("%s is drained again: %s", name, error)
                await asyncio.sleep(AGAIN_SECONDS)
        del self._drains[name]
        self._contents.pop(name, None)


def _why(status: dict[str, Any]) -> str:
    """The processes that do not run, and how they ended."""
    ended = []
    for one in status["processes"]:
        if one["state"] in ("waiting", "crash-looping") and one["last_exit"] is not None:
            words = "".join(f": {line}" for line in one["last_exit"]["log"][-1:])
            ended.append(f"{one['name']} ({one['last_exit']['cause']}{words})")
    return ", ".join(ended)
