"""Keeps a whole fleet as its file wants it, and does what the command line asks."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import answer_asks, asks_file
from prime_inference.fleet.errors import FleetRefused, FleetRunning
from prime_inference.fleet.fleet import Fleet, PlannedDeployment
from prime_inference.fleet.launcher import gateway, processes
from prime_inference.fleet.launcher.deployment import RunningDeployment
from prime_inference.fleet.launcher.keeper import GRACE_SECONDS, Keeper
from prime_inference.fleet.launcher.ports import Ports
from prime_inference.fleet.launcher.processes import end_group
from prime_inference.fleet.launcher.readiness import Prober
from prime_inference.fleet.launcher.state import (
    DeploymentRecord,
    FleetState,
    ProcessRecord,
    StateFolder,
)
from prime_inference.fleet.ready import write_ready
from prime_inference.reliability.background import Background

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # a probe costs a millisecond; a frozen frontend leaves the list within 3 s
READY_SECONDS = 300.0  # of a replaced worker: a large model from a slow disk


class Supervisor:
    """One fleet on this machine.

    Processes outlive it: the next supervisor of the same folder takes them over. Only `down`
    and `close(stop=True)` end them.
    """

    def __init__(self, fleet: Fleet, file: Path, folder: StateFolder, *, python: str) -> None:
        self.fleet = fleet
        self._file = file.absolute()
        self._folder = folder
        self._python = python
        self._prober = Prober()
        self._ports = Ports()
        self._state = FleetState(str(self._file))
        self._deployments: dict[str, RunningDeployment] = {}
        self._gateway: Keeper | None = None
        self._gateway_ready = False  # it answers, and knows a deployment
        self._lock: int | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._listed: tuple[list[Any], list[str]] | None = None
        self.looked = asyncio.Event()  # every deployment has been asked at least once
        self.finished = asyncio.Event()  # `down` was asked for and is done

    async def start(self) -> None:
        """Take over what runs, start what is missing, end what is of no fleet any more.

        Raises FleetRunning, SpecMalformed, OSError.
        """
        self._folder.create()
        self._lock = take_lock(self._folder)
        self._state = self._folder.load() or self._state
        self._state.file = str(self._file)
        self._ports = Ports(self._state.ports())
        found = processes.find(str(self._folder.folder))
        for planned in self.fleet.deployments:
            self._deployments[planned.id] = self._deployment(planned)
        known = {one.id for one in self.fleet.deployments} | {gateway.NAME}
        for gone in self._state.deployments.keys() - known:
            del self._state.deployments[gone]
        await self._end_strays(found)
        self._write_list()
        for one in self._deployments.values():
            one.up()
        self._start_gateway()
        self._save()
        background = Background(asyncio.get_running_loop().time)
        self._loops = [
            background.start("supervisor", self._look),
            background.start(
                "caches", lambda: answer_asks(self._folder.caches_file, self.cache_reports)
            ),
        ]

    async def close(self, *, stop: bool) -> None:
        """Stop supervising; with `stop`, end every process first."""
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        if stop:
            await self._end_all()
        for one in self._deployments.values():
            one.leave()
        if self._gateway is not None:
            self._gateway.leave()
        await self._prober.close()
        if self._lock is not None:
            os.close(self._lock)

    # -- what can be asked

    async def status(self) -> dict[str, Any]:
        """The fleet as it is, as plain values."""
        return {
            "fleet": self.fleet.name,
            "folder": str(self._folder.folder),
            "gateway": self._gateway_status(),
            "deployments": [self._deployment_status(one) for one in self._deployments.values()],
        }

    async def caches(self) -> dict[str, Any]:
        """`status`, with what every deployment's caches did."""
        reports = await self.cache_reports()
        status = await self.status()
        for entry in status["deployments"]:
            report = reports.get(entry["id"], CacheReport())
            entry["caches"] = msgspec.to_builtins(report) | {
                "hit_rate": report.hit_rate,
                "host_hit_rate": report.host_hit_rate,
            }
        return status

    async def scale(self, deployment: str, role: str, replicas: int) -> None:
        await self._find(deployment).scale(role, replicas)

    async def drain(self, deployment: str) -> None:
        one = self._find(deployment)
        one.record.running = False
        self._write_list()
        await one.drain()

    def add(self, planned: PlannedDeployment) -> None:
        """Start one more deployment; one of that name is left as it is."""
        if planned.id not in self._deployments:
            self._deployments[planned.id] = self._deployment(planned)
            self._deployments[planned.id].up()

    async def remove(self, deployment: str) -> None:
        """Drain a deployment and forget it."""
        await self.drain(deployment)
        del self._deployments[deployment], self._state.deployments[deployment]
        self._save()

    async def restart(self, deployment: str, process: str | None) -> None:
        """Raises FleetRefused, CrashLooping."""
        if deployment == gateway.NAME and self._gateway is not None:
            await self._gateway.restart()
            return
        await self._find(deployment).restart(process, READY_SECONDS)

    async def down(self) -> None:
        await self._end_all()
        self.finished.set()

    # -- inside

    def _deployment(self, planned: PlannedDeployment) -> RunningDeployment:
        replicas = {role: pool.replicas for role, pool in planned.spec.topology.pools.items()}
        record = self._state.deployments.get(planned.id)
        if record is None:
            record = DeploymentRecord(self._ports.take(), replicas=replicas)
            self._state.deployments[planned.id] = record
        if record.replicas.keys() != replicas.keys():
            record.replicas = replicas  # the file has another topology now
        return RunningDeployment(
            planned,
            record,
            self._folder,
            self._prober,
            python=self._python,
            base=self._file.parent,
            ports=self._ports,
            save=self._save,
        )

    async def _end_strays(self, found: dict[str, list[processes.Identity]]) -> None:
        """End processes that no record names, and note the ids of those that one does."""
        strays = []
        for name, identities in found.items():
            deployment, _, process = name.partition("/")
            entry = self._state.deployments.get(deployment)
            record = entry.processes.get(process) if entry else None
            for identity in identities:
                if record is not None and record.identity in (None, identity):
                    record.pid, record.started = identity.pid, identity.started
                else:
                    strays.append(identity)
        if strays:
            log.warning("ending %d processes that belong to no deployment", len(strays))
        await asyncio.gather(*(end_group(one, GRACE_SECONDS) for one in strays))

    def _start_gateway(self) -> None:
        if not self.fleet.gateway.enabled:
            return
        entry = self._state.deployments.setdefault(gateway.NAME, DeploymentRecord(0))
        process = gateway.gateway_process(self.fleet.gateway, self._folder, self._ports)
        record = entry.processes.setdefault(gateway.NAME, ProcessRecord(process))
        self._gateway = gateway.gateway_keeper(record, self._folder, self._prober)
        self._gateway.run()

    async def _look(self) -> None:
        while True:
            await asyncio.gather(*(one.look() for one in self._deployments.values()))
            self.looked.set()
            self._write_list()
            if self._gateway is not None:
                await self._look_at_gateway(self._gateway)
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_at_gateway(self, keeper: Keeper) -> None:
        ready = await self._prober.succeeds(keeper.record.process.port, "/ready")
        self._gateway_ready = ready and gateway.pid(self._folder) == keeper.record.pid
        if self._gateway_ready:
            keeper.note_serving()

    async def cache_reports(self) -> dict[str, CacheReport]:
        """What every deployment's caches did, by its id; all its processes are asked now."""
        ones = dict(self._deployments)
        reports = await asyncio.gather(*(one.caches() for one in ones.values()))
        return dict(zip(ones, reports, strict=True))

    def _write_list(self) -> None:
        """Tell the gateways, if anything changed."""
        deployments = self._deployments.values()
        ready = [one.ready() for one in deployments if one.serving]
        down = [one.planned.id for one in deployments if one.down]
        if (ready, down) != self._listed:
            write_ready(self._folder.ready_file, ready, down)
            self._listed = ready, down

    def _save(self) -> None:
        self._folder.save(self._state)

    async def _end_all(self) -> None:
        """The gateway first: it drains, and its answers need the deployments."""
        if self._gateway is not None:
            await self._gateway.stop()
        await asyncio.gather(*(one.stop(GRACE_SECONDS) for one in self._deployments.values()))
        self._state.deployments.clear()
        self._save()
        self._folder.ready_file.unlink(missing_ok=True)
        self._folder.caches_file.unlink(missing_ok=True)
        asks_file(self._folder.caches_file).unlink(missing_ok=True)

    def _find(self, deployment: str) -> RunningDeployment:
        one = self._deployments.get(deployment)
        if one is None:
            known = ", ".join(self._deployments)
            raise FleetRefused(f"There is no deployment {deployment!r}: there are {known}.")
        return one

    def _gateway_status(self) -> dict[str, Any] | None:
        if self._gateway is None:
            return None
        process = self._gateway.record.process
        return self._gateway.status() | {
            "ready": self._gateway_ready,
            "base_url": gateway.base_url(process),
            "control_url": f"http://127.0.0.1:{process.port}",
            "api_key": gateway.api_key(self._folder),
        }

    @staticmethod
    def _deployment_status(one: RunningDeployment) -> dict[str, Any]:
        return {
            "id": one.planned.id,
            "model": one.planned.spec.model.id,
            "datacenter": one.planned.datacenter,
            "wanted": one.record.running,
            "state": one.state,
            "down": one.down,
            "base_url": one.base_url,
            "replicas": one.record.replicas,
            "workers": one.seen.workers if one.seen else {},
            "processes": [keeper.status() for keeper in one.keepers],
        }


def take_lock(folder: StateFolder) -> int:
    """A lock that the kernel gives back when its holder dies. Raises FleetRunning."""
    handle = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise FleetRunning(f"Another process supervises the fleet in {folder.folder}.") from None
    return handle


async def end_without_supervisor(folder: StateFolder) -> int:
    """End every process of a fleet whose supervisor is gone; how many. Raises FleetRunning."""
    lock = take_lock(folder)
    try:
        found = processes.find(str(folder.folder))
        identities = {identity for some in found.values() for identity in some}
        state = folder.load()
        for deployment in state.deployments.values() if state else ():
            for record in deployment.processes.values():
                if record.identity is not None and record.identity.alive:
                    identities.add(record.identity)
        await asyncio.gather(*(end_group(one, GRACE_SECONDS) for one in identities))
        caches = (folder.caches_file, asks_file(folder.caches_file))
        for file in (folder.state_file, folder.ready_file, *caches, folder.socket):
            file.unlink(missing_ok=True)
        return len(identities)
    finally:
        os.close(lock)
