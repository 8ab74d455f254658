"""One deployment under the launcher: its processes and the state it is in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import cache_report
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.launcher.exits import require_hope
from prime_inference.fleet.launcher.keeper import GRACE_SECONDS, Keeper
from prime_inference.fleet.launcher.lifecycle import SERVING, Lifecycle, Readiness
from prime_inference.fleet.launcher.ports import Ports
from prime_inference.fleet.launcher.processes import start
from prime_inference.fleet.launcher.readiness import Prober
from prime_inference.fleet.launcher.sources import model_source
from prime_inference.fleet.launcher.state import DeploymentRecord, ProcessRecord, StateFolder
from prime_inference.fleet.local import Process, frontend_process, worker_process
from prime_inference.fleet.ready import ReadyDeployment

log = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0  # until every gateway follows the list of ready deployments; it looks twice
DRAIN_SECONDS = 60.0  # answers in flight get so long before the processes are ended
DRAIN_LOOK_SECONDS = 0.25
MAX_WORKERS = 64  # of a pool on one machine; each takes 100 MB


class RunningDeployment:
    """Implements what is wanted of one deployment with child processes."""

    def __init__(
        self,
        planned: PlannedDeployment,
        record: DeploymentRecord,
        folder: StateFolder,
        prober: Prober,
        *,
        python: str,
        base: Path,
        ports: Ports,
        save: Callable[[], None],
    ) -> None:
        self.planned = planned
        self.record = record
        self._folder = folder
        self._prober = prober
        self._python = python
        self._base = base
        self._ports = ports
        self._save = save
        self._lifecycle = Lifecycle()
        self._keepers: dict[str, Keeper] = {}
        self.seen: Readiness | None = None

    # -- what it is

    @property
    def state(self) -> str:
        return self._lifecycle.state

    @property
    def serving(self) -> bool:
        """Whether gateways may send it requests."""
        return self.record.running and self._lifecycle.state in SERVING

    @property
    def down(self) -> bool:
        """Whether it is to serve and does not, so that requests wait there in vain."""
        return self.record.running and self._lifecycle.down

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.record.port}/v1"

    async def caches(self) -> CacheReport:
        """How well its caches serve it, asked now."""
        processes = [keeper.record.process for keeper in self._keepers.values()]
        asked = await asyncio.gather(*(self._prober.metrics(one.port) for one in processes))
        texts = [(one.role, text) for one, text in zip(processes, asked, strict=True)]
        frontend = "".join(text for role, text in texts if role == "frontend")
        workers = [text for role, text in texts if role != "frontend"]
        tiered: list[str] = []
        if self.planned.spec.kv.host_tier is not None:
            tiered = [text for role, text in texts if role in ("prefill", "aggregated")]
        try:
            return cache_report(frontend, workers, tiered)
        except ValueError:  # another program took the port of a process that is down
            return CacheReport()

    def ready(self) -> ReadyDeployment:
        return ReadyDeployment.of(self.planned, self.base_url)

    @property
    def keepers(self) -> Iterable[Keeper]:
        return list(self._keepers.values())

    async def look(self) -> None:
        """Ask the frontend, and take note."""
        seen = None
        if self.record.running:
            seen = await self._prober.readiness(self.record.port, self.planned.spec.model.id)
        self.seen = seen
        alive = [keeper for keeper in self._keepers.values() if keeper.alive]
        if seen is not None:
            self._note_serving(seen, alive)
        before = self._lifecycle.state
        after = self._lifecycle.observe(
            running=self.record.running,
            alive=len(alive),
            replicas=self.record.replicas,
            seen=seen,
            crash_looping=any(one.state == "crash-looping" for one in self._keepers.values()),
        )
        if after != before:
            log.info("deployment %s is %s", self.planned.id, after)

    # -- what is done to it

    def up(self) -> None:
        """Start what is wanted and does not run; what runs already is kept."""
        if not self.record.running:
            return
        discovery = self._folder.discovery(self.planned.id)
        if not any(record.identity for record in self.record.processes.values()):
            shutil.rmtree(discovery, ignore_errors=True)  # workers of a run that is over
        discovery.mkdir(parents=True, exist_ok=True)
        wanted = list(self._wanted(discovery))
        for name in self.record.processes.keys() - {process.name for process in wanted}:
            del self.record.processes[name]
        for process in wanted:
            record = self.record.processes.setdefault(process.name, ProcessRecord(process))
            if process.name not in self._keepers:
                self._keep(record)
        self._save()

    async def scale(self, role: str, replicas: int) -> None:
        """Change the size of a pool; workers that are too many finish their answers first."""
        if role not in self.record.replicas:
            known = ", ".join(self.record.replicas)
            raise FleetRefused(f"{self.planned.id} has no pool {role!r}: it has {known}.")
        if not 0 < replicas <= MAX_WORKERS:
            raise FleetRefused(f"A pool has 1 to {MAX_WORKERS} workers, not {replicas}.")
        surplus = range(replicas, self.record.replicas[role])
        self.record.replicas[role] = replicas
        keepers = [self._keepers.pop(f"{role}-{index}", None) for index in surplus]
        await asyncio.gather(*(keeper.stop() for keeper in keepers if keeper is not None))
        self.up()

    async def drain(self, grace_seconds: float = DRAIN_SECONDS) -> None:
        """Take it from the gateways, wait for answers in flight, end it. It stays down."""
        self.record.running = False
        self._save()
        await asyncio.sleep(NOTICE_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._until_idle()
        await self.stop(GRACE_SECONDS)

    async def stop(self, grace_seconds: float) -> None:
        """End every process: workers first, so that the frontend can still route around them."""
        workers = [keeper for name, keeper in self._keepers.items() if name != "frontend"]
        frontend = self._keepers.get("frontend")
        if frontend is not None:
            await frontend.stop(grace_seconds)  # it waits for its answers, and needs the workers
        await asyncio.gather(*(keeper.stop(grace_seconds) for keeper in workers))
        self._keepers.clear()
        self._save()

    async def restart(self, name: str | None, ready_seconds: float) -> None:
        """Replace one process, or all workers of the deployment, one after another.

        A deployment that was drained is started. Raises FleetRefused.
        """
        if not self.record.running:
            self.record.running = True
            self.up()
            return
        if name is not None and name not in self._keepers:
            known = ", ".join(self._keepers)
            raise FleetRefused(f"{self.planned.id} has no process {name!r}: it has {known}.")
        looping = [one for one in self._keepers if self._keepers[one].state == "crash-looping"]
        workers = [one for one in self._keepers if one != "frontend"]
        names = [name] if name else [*looping, *(one for one in workers if one not in looping)]
        idle = [one for one in names if one in looping]
        await asyncio.gather(*(self._keepers[one].restart() for one in idle))
        if idle:  # they served nobody, and nothing is whole without them
            await self._until_ready(ready_seconds)
        for one in names:
            if one not in idle:
                await self._keepers[one].restart()
                await self._until_ready(ready_seconds)

    def leave(self) -> None:
        """Stop watching; the processes go on."""
        for keeper in self._keepers.values():
            keeper.leave()

    # -- inside

    def _note_serving(self, seen: Readiness, alive: Sequence[Keeper]) -> None:
        """Tell those that serve. Of a pool it is known when all that run are counted."""
        running = Counter(keeper.record.process.role for keeper in alive)
        for keeper in alive:
            role = keeper.record.process.role
            if seen.workers.get(role, 0) >= running[role] or (role == "frontend" and seen.workers):
                keeper.note_serving()

    async def _until_idle(self) -> None:
        """Return when no request is in flight, or none can be counted."""
        while True:
            if not await self._prober.in_flight(self.record.port):
                return
            await asyncio.sleep(DRAIN_LOOK_SECONDS)

    async def _until_ready(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self.look()
            if self._lifecycle.state == "ready":
                return
            for keeper in self._keepers.values():
                require_hope(self.planned.id, keeper.status())
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        raise FleetRefused(f"{self.planned.id} was not whole again within {seconds:.0f} s.")

    def _wanted(self, discovery: Path) -> Iterable[Process]:
        spec = self.planned.spec
        source = model_source(spec, self._folder.folder / "models" / self.planned.id, self._base)
        known = self.record.processes
        if "frontend" in known:
            yield known["frontend"].process
        else:
            yield frontend_process(spec, discovery, self.record.port)
        for role, count in self.record.replicas.items():
            for index in range(count):
                name = f"{role}-{index}"
                if name in known:
                    yield known[name].process  # with the ports it has
                    continue
                yield worker_process(
                    spec,
                    role,
                    index,
                    source=source,
                    discovery=discovery,
                    free_port=self._ports.take,
                )

    def _keep(self, record: ProcessRecord) -> None:
        name = record.process.name
        keeper = Keeper(
            record,
            self._start,
            self._save,
            self._responds,
            self._folder.log_file(self.planned.id, name),
            deployment=self.planned.id,
        )
        self._keepers[name] = keeper
        keeper.run()

    def _start(self, record: ProcessRecord) -> int:
        process = record.process
        return start(
            [self._python, *process.argv],
            process.environment,
            self._folder.log_file(self.planned.id, process.name),
            fleet=str(self._folder.folder),
            name=f"{self.planned.id}/{process.name}",
        )

    async def _responds(self, record: ProcessRecord) -> bool:
        return await self._prober.responds(record.process.port, "/live")
