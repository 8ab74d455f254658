"""Keeps a whole fleet as its file wants it, and does what the command line asks."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import answer_asks
from prime_inference.fleet.errors import FleetError, FleetRefused
from prime_inference.fleet.fleet import LAUNCHERS_OWN, Fleet, PlannedDeployment
from prime_inference.fleet.launcher import gateway, processes
from prime_inference.fleet.launcher.deployment import RunningDeployment
from prime_inference.fleet.launcher.ending import end_everything, everything, turn
from prime_inference.fleet.launcher.gateway import FleetGateway
from prime_inference.fleet.launcher.keeper import GRACE_SECONDS
from prime_inference.fleet.launcher.living import take_stock
from prime_inference.fleet.launcher.lock import FolderLock
from prime_inference.fleet.launcher.logs import keep_short
from prime_inference.fleet.launcher.ports import Ports
from prime_inference.fleet.launcher.processes import Identity
from prime_inference.fleet.launcher.readiness import Prober
from prime_inference.fleet.launcher.replacing import replace_changed
from prime_inference.fleet.launcher.state import (
    DeploymentRecord,
    FleetState,
    StateFolder,
)
from prime_inference.fleet.launcher.takeover import Fate, fate
from prime_inference.fleet.launcher.written import WrittenFiles
from prime_inference.reliability.background import Background, Run, end

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # a probe costs a millisecond; a frozen frontend leaves the list within 3 s
AGAIN_SECONDS = 5.0  # until the next attempt to start what could not be
READY_SECONDS = 300.0  # of a replaced worker: a large model from a slow disk


class Supervisor:
    """One fleet on this machine.

    Processes outlive it: the next supervisor of the same folder takes them over. Only `down`
    and `close(stop=True)` end them. `goes_on`: what the state knows is wanted beside the fleet's
    deployments, and others are added and removed.
    """

    def __init__(
        self,
        fleet: Fleet,
        file: Path,
        folder: StateFolder,
        *,
        python: str,
        goes_on: bool = False,
    ) -> None:
        self.fleet = fleet
        self._file = file.absolute()
        self._folder = folder
        self._python = python
        self._goes_on = goes_on
        self._prober = Prober()
        self._ports = Ports()
        self._state = FleetState(str(self._file))
        self._deployments: dict[str, RunningDeployment] = {}
        self._gateway: FleetGateway | None = None
        self._lock = FolderLock(folder)
        self._background = Background(time.monotonic)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._lacking: dict[str, float] = {}  # deployments to be completed, and when to try
        self._unseen: set[str] = set()  # deployments that have not been asked yet
        self._files = WrittenFiles(folder)
        self.looked = asyncio.Event()  # every deployment has been asked at least once
        self.finished = asyncio.Event()  # `down` is done, or another supervisor is in its place

    async def start(self) -> None:
        """Take over what runs (`takeover`), start what is missing, end what is of no fleet.

        What takes time goes on afterwards. Raises FleetRunning, SpecMalformed, OSError.
        """
        self._lock.take()
        self._state = self._folder.load() or self._state
        self._state.file = str(self._file)
        members = list(processes.members(str(self._folder.folder)))
        strays = take_stock(self._state, self._folder, members)
        self._ports = Ports(self._state.ports())
        await self._end_strays(strays)
        fates = self._take_over()
        self._gateway = FleetGateway(
            self.fleet.gateway, self._state, self._folder, self._prober, self._ports, self._save
        )
        self._unseen = set(self._deployments)
        if not self._unseen:
            self.looked.set()
        if not any(record.lives for _, record in self._state.processes()):
            self.looked.set()  # there is nothing to wait for: the list of before is wrong
            self._write_list()
        self._save()
        self._folder.clear_gone(self._deployments)
        for name, one in self._deployments.items():
            if fates[name] in ("start", "keep"):
                self._complete(one)
            else:
                one.adopt()
            self._watch(name)
        self._start_task("take-over", self._settle)
        self._start_task("gateway", self._gateway.keep)
        self._start_task("folder", self._keep_folder)
        self._start_task(
            "caches", lambda: answer_asks(self._folder.caches_file, self.cache_reports)
        )
        self._start_task(
            "logs",
            lambda: keep_short(self._folder.logs, lambda: {LAUNCHERS_OWN, *self._deployments}),
        )

    async def close(self, *, stop: bool) -> None:
        """Stop supervising; with `stop`, end every process first. Raises FleetRefused."""
        try:
            await self._end_tasks()
            if stop:
                await self._end_all()
        finally:
            for one in self._deployments.values():
                one.leave()
            if self._gateway is not None:
                self._gateway.leave()
            self._lock.release()

    # -- what can be asked

    async def status(self) -> dict[str, Any]:
        """The fleet as it is, as plain values."""
        return {
            "fleet": self.fleet.name,
            "folder": str(self._folder.folder),
            "supervisor": os.getpid(),
            "unwritten": dict(self._files.unwritten),
            "gateway": None if self._gateway is None else self._gateway.status(),
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

    @property
    def deployments(self) -> Sequence[PlannedDeployment]:
        """What runs, or is drained."""
        return [one.planned for one in self._deployments.values()]

    def add(self, planned: PlannedDeployment) -> None:
        """Start one more deployment; one of that name is left as it is. Raises SpecMalformed,
        OSError, and the deployment is none then."""
        if planned.id not in self._deployments:
            try:
                self._admit(planned.id, planned, "start").up()
            except (FleetError, OSError):
                self._deployments.pop(planned.id, None)
                self._drop_record(planned.id)
                raise
            self._watch(planned.id)

    async def remove(self, deployment: str) -> None:
        """Drain a deployment and forget it; the same again goes on with it. Raises FleetRefused
        while something of it lives."""
        if deployment in self._deployments:
            await self.drain(deployment)
            self._forget(deployment)

    async def restart(self, deployment: str, process: str | None) -> None:
        """Raises FleetRefused, CrashLooping, OSError."""
        if deployment == gateway.NAME and self._gateway is not None and self._gateway.enabled:
            await self._gateway.restart()
            return
        one = self._find(deployment)
        await one.restart(process, READY_SECONDS)
        if one.next is not None:  # it was drained with what the file had before
            await one.replace(READY_SECONDS)

    async def down(self) -> None:
        """Raises FleetRefused with what could not be ended, and where a controller keeps the
        fleet: that would go on telling gateways of it."""
        if self._goes_on:
            raise FleetRefused(
                f"A controller, process {os.getpid()}, keeps {self._folder.folder.name}: take its"
                f" deployments out of the controller's file; or end the controller (kill -TERM"
                f" {os.getpid()}), then ask for this again."
            )
        try:
            await self._end_tasks()
            await self._end_all()
        finally:
            self.finished.set()

    # -- inside

    def _take_over(self) -> dict[str, Fate]:
        """Every deployment of the file and of the state, with what becomes of it."""
        fates: dict[str, Fate] = {}
        wanted = {one.id: one for one in self.fleet.deployments}
        if self._goes_on:
            known = self._state.deployments.items()
            wanted |= {name: one.planned for name, one in known if one.running}
        for name in dict.fromkeys([*wanted, *self._state.deployments]):
            record, planned = self._state.deployments.get(name), wanted.get(name)
            lives = record is not None and record.lives
            fates[name] = fate(record, planned, str(self._file.parent), lives=lives)
            if fates[name] != "start":
                log.info("deployment %s: %s", name, fates[name])
            if fates[name] == "forget":
                self._drop_record(name)
            else:
                self._admit(name, planned, fates[name])
        return fates

    def _admit(self, name: str, planned: PlannedDeployment | None, what: Fate) -> RunningDeployment:
        record = self._state.deployments.get(name)
        if record is None:
            assert planned is not None, name
            record = DeploymentRecord(self._ports.take(), planned)
            self._state.deployments[name] = record
        if planned is None:
            record.running = False
        one = self._deployments[name] = RunningDeployment(
            record,
            self._folder,
            self._prober,
            python=self._python,
            base=self._file.parent,
            ports=self._ports,
            save=self._save,
        )
        if planned is not None:
            if what in ("start", "keep"):
                one.take(planned)
            else:
                one.next = planned
        return one

    def _complete(self, one: RunningDeployment) -> None:
        """Start what is missing. Where that cannot be, what lives is kept all the same, and it is
        tried again; a fleet of which nothing lives is told. Raises SpecMalformed, OSError."""
        try:
            one.up()
        except (FleetError, OSError) as error:
            if not self._goes_on and not any(each.lives for _, each in self._state.processes()):
                raise
            if one.planned.id not in self._lacking:
                log.error("deployment %s cannot be completed now: %s", one.planned.id, error)
            self._lacking[one.planned.id] = time.monotonic() + AGAIN_SECONDS
            one.adopt()
        else:
            self._lacking.pop(one.planned.id, None)

    async def _end_strays(self, strays: Sequence[Identity]) -> None:
        if strays:
            log.warning("ending %d processes that belong to no deployment", len(strays))
            await processes.end_all(
                lambda: {
                    one: name
                    for one, name in everything(self._folder, None).items()
                    if one in strays
                },
                turn,
                GRACE_SECONDS,
            )

    async def _settle(self) -> None:
        """What a take-over leaves to do: drain on, forget, and replace one after another."""
        await asyncio.gather(*(self._settle_one(name) for name in list(self._deployments)))
        await self.looked.wait()  # it is not known before who serves
        await replace_changed(self._deployments.values(), READY_SECONDS)

    async def _settle_one(self, name: str) -> None:
        one = self._deployments[name]
        try:
            await one.settle()
            if self.fleet.find(name) is None and not one.record.running:
                self._forget(name)
        except FleetRefused as error:  # a restart undid it, or something cannot be ended
            log.warning("%s", error)

    def _forget(self, name: str) -> None:
        """Raises FleetRefused while something of it lives."""
        if name not in self._deployments:
            return
        if self._state.deployments[name].lives:
            raise FleetRefused(f"Not every process of {name} could be ended.")
        self._tasks.pop(f"deployment {name}").cancel()
        del self._deployments[name]
        self._lacking.pop(name, None)
        self._drop_record(name)
        self._folder.clear_gone(self._deployments)
        self._save()
        self._write_list()

    def _drop_record(self, name: str) -> None:
        """Of a deployment of which nothing lives; its ports are free for others."""
        record = self._state.deployments.pop(name, None)
        if record is not None:
            self._ports.give_back(record.ports())

    def _start_task(self, name: str, run: Run) -> None:
        self._tasks[name] = self._background.start(name, run)

    async def _end_tasks(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        await end(tasks)

    def _watch(self, name: str) -> None:
        """Look at a deployment again and again; one that is slow to answer holds up no other."""

        async def watch() -> None:
            while True:
                await self._deployments[name].look()
                if self._lacking.get(name, math.inf) < time.monotonic():
                    self._complete(self._deployments[name])
                self._unseen.discard(name)
                if not self._unseen:
                    self.looked.set()
                self._write_list()
                if self._files.state_is_old:
                    self._save()
                await asyncio.sleep(LOOK_SECONDS)

        self._start_task(f"deployment {name}", watch)

    async def cache_reports(self) -> dict[str, CacheReport]:
        """What every deployment's caches did, by its id; all its processes are asked now."""
        ones = dict(self._deployments)
        reports = await asyncio.gather(*(one.caches() for one in ones.values()))
        return dict(zip(ones, reports, strict=True))

    def _write_list(self) -> None:
        """Tell the gateways, once all is known of what was taken over."""
        if self.looked.is_set():
            deployments = self._deployments.values()
            ready = [one.ready() for one in deployments if one.serving]
            self._files.tell(ready, [one.planned.id for one in deployments if one.down])

    def _save(self) -> None:
        self._files.save(self._state)

    async def _end_all(self) -> None:
        """The gateway first: it drains, and its answers need the deployments."""
        if self._gateway is not None:
            await self._gateway.end()
        await asyncio.gather(*(one.end() for one in self._deployments.values()))
        try:
            await end_everything(self._folder, self._state)
        finally:
            self._state.forget_ended()
            self._save()
            self._folder.clear_told()

    async def _keep_folder(self) -> None:
        await self._lock.keep(self._write_anew)
        self.finished.set()

    def _write_anew(self) -> None:
        self._files.forget()
        self._save()
        self._write_list()

    def _find(self, deployment: str) -> RunningDeployment:
        one = self._deployments.get(deployment)
        if one is None:
            known = ", ".join(self._deployments)
            raise FleetRefused(f"There is no deployment {deployment!r}: there are {known}.")
        return one

    @staticmethod
    def _deployment_status(one: RunningDeployment) -> dict[str, Any]:
        return {
            "id": one.planned.id,
            "model": one.planned.spec.model.id,
            "datacenter": one.planned.datacenter,
            "wanted": one.record.running,
            "state": one.state,
            "down": one.down,
            "changed": one.next is not None,
            "base_url": one.base_url,
            "replicas": one.record.replicas,
            "workers": one.seen.workers if one.seen else {},
            "processes": [keeper.status() for keeper in one.keepers],
        }
