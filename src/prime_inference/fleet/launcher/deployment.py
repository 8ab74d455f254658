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
from prime_inference.fleet.errors import FleetError, FleetRefused
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.launcher.exits import require_hope
from prime_inference.fleet.launcher.keeper import GRACE_SECONDS, Keeper
from prime_inference.fleet.launcher.lifecycle import SERVING, Lifecycle, Readiness
from prime_inference.fleet.launcher.listeners import listens
from prime_inference.fleet.launcher.pool_processes import PoolProcesses
from prime_inference.fleet.launcher.ports import Ports
from prime_inference.fleet.launcher.processes import Identity, start
from prime_inference.fleet.launcher.readiness import Prober
from prime_inference.fleet.launcher.sources import require_source
from prime_inference.fleet.launcher.state import (
    DeploymentRecord,
    ProcessRecord,
    StateFolder,
    carried,
)
from prime_inference.fleet.launcher.takeover import same_processes
from prime_inference.fleet.ready import ReadyDeployment

log = logging.getLogger(__name__)

NOTICE_SECONDS = 1.0  # until every gateway follows the list of ready deployments; it looks twice
DRAIN_SECONDS = 60.0  # answers in flight get so long before the processes are ended
DRAIN_LOOK_SECONDS = 0.25
MAX_WORKERS = 64  # of a pool on one machine; each takes 100 MB


class RunningDeployment:
    """Implements what is wanted of one deployment with child processes.

    `planned` is what they were started as; `next`, where there is one, what they are to be
    replaced by. Scaling, restarts, drains and replacements take turns.
    """

    def __init__(
        self,
        record: DeploymentRecord,
        folder: StateFolder,
        prober: Prober,
        *,
        python: str,
        base: Path,
        ports: Ports,
        save: Callable[[], None],
    ) -> None:
        self.record = record
        self.next: PlannedDeployment | None = None
        self._folder = folder
        self._prober = prober
        self._python = python
        self._base = base
        self._processes = PoolProcesses(record, folder, base, ports)
        self._save = save
        self._lifecycle = Lifecycle(was_ready=record.served)
        self._turn = asyncio.Lock()
        self._leaving = False  # it is being replaced
        self._over = False
        self._keepers: dict[str, Keeper] = {}
        self._proven: Identity | None = None  # the frontend that was seen to have its port
        self.seen: Readiness | None = None

    # -- what it is

    @property
    def planned(self) -> PlannedDeployment:
        return self.record.planned

    @property
    def model(self) -> str:
        """The id of what it runs."""
        return self.planned.spec.model.id

    @property
    def state(self) -> str:
        return self._lifecycle.state

    @property
    def serving(self) -> bool:
        """Whether gateways may send it requests."""
        return self._up and self._lifecycle.state in SERVING

    @property
    def down(self) -> bool:
        """Whether it is to serve and does not, so that requests wait there in vain."""
        return self._up and self._lifecycle.down

    @property
    def _up(self) -> bool:
        return self.record.running and not self._leaving

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
        # apart from what answers commands: the texts may be large
        return await asyncio.to_thread(cache_report, frontend, workers, tiered)

    def ready(self) -> ReadyDeployment:
        """What gateways are told: of what runs, whatever is wanted by now."""
        return ReadyDeployment.of(self.planned, self.base_url)

    @property
    def keepers(self) -> Iterable[Keeper]:
        return list(self._keepers.values())

    async def look(self) -> None:
        """Ask the frontend, and take note."""
        self.seen = seen = await self._heard() if self._up else None
        alive = [keeper for keeper in self._keepers.values() if keeper.alive]
        if seen is not None:
            self._note_serving(seen, alive)
        before = self._lifecycle.state
        after = self._lifecycle.observe(
            running=self._up,
            alive=sum(one.lives for one in self.record.processes.values()),
            replicas=self.record.replicas,
            seen=seen,
            crash_looping=any(one.state == "crash-looping" for one in self._keepers.values()),
        )
        if after != before:
            log.info("deployment %s is %s", self.planned.id, after)

    # -- what is done to it

    def take(self, planned: PlannedDeployment) -> None:
        """Be this from now on: what runs is what it would start, or nothing runs.

        Replicas that somebody chose hold until the file has others.
        """
        if not same_processes(self.record, planned, str(self._base)):
            for name in list(self.record.processes):
                self._processes.drop(name)
        pools = {role: pool.replicas for role, pool in planned.spec.topology.pools.items()}
        if pools != self.record.filed:
            self.record.replicas, self.record.filed = dict(pools), pools
        self.record.planned, self.record.base = planned, str(self._base)
        self.next = None

    def adopt(self) -> None:
        """Watch what lives; what is wanted is kept alive, what is not is left to end."""
        for record in self.record.processes.values():
            if record.lives or self.record.running:
                keeper = self._keepers[record.process.name] = self._of(record.process.name)
                if self.record.running:
                    keeper.run()

    def up(self) -> None:
        """Start what is wanted and does not run; what runs already is kept. Raises OSError."""
        if not self.record.running or self._over:
            return
        if not self.record.lives and not self._keepers:
            self.take(self.next or self.planned)
        discovery = self._processes.discovery
        if not self.record.lives:
            shutil.rmtree(discovery, ignore_errors=True)  # workers of a run that is over
        discovery.mkdir(parents=True, exist_ok=True)
        self._processes.make()
        for name in self._processes.names():
            self._keepers[name] = self._of(name)
        self._save()  # before any of them is started
        for keeper in self._keepers.values():
            keeper.run()

    async def settle(self) -> None:
        """Do what a take-over leaves to do beside what serves: end what is too many, and drain
        on what was being drained. Raises FleetRefused if it is restarted meanwhile."""
        if not self.record.running:
            await self.drain()
            return
        async with self._turn:
            await self._trim()

    async def _trim(self) -> None:
        """End workers that are too many; they finish their answers first."""
        surplus = self.record.processes.keys() - set(self._processes.names())
        keepers = [self._of(name) for name in surplus]
        await asyncio.gather(*(keeper.end() for keeper in keepers))
        for keeper in keepers:
            self._keepers.pop(keeper.record.process.name, None)
            if not keeper.alive:
                self._processes.drop(keeper.record.process.name)
        self._save()

    async def scale(self, role: str, replicas: int) -> None:
        """Change the size of a pool; workers that are too many finish their answers first.

        Of a drained deployment it is what it will have. Raises FleetRefused, and SpecMalformed or
        OSError where that cannot be: it stays as it was then.
        """
        if role not in self.record.replicas:
            known = ", ".join(self.record.replicas)
            raise FleetRefused(f"{self.planned.id} has no pool {role!r}: it has {known}.")
        if not 0 < replicas <= MAX_WORKERS:
            raise FleetRefused(f"A pool has 1 to {MAX_WORKERS} workers, not {replicas}.")
        before, self.record.replicas[role] = self.record.replicas[role], replicas
        self._save()
        if self.record.running:
            async with self._turn:
                try:
                    self.up()
                except (FleetError, OSError):
                    self.record.replicas[role] = before
                    self._save()
                    raise
                await self._trim()

    async def drain(self, grace_seconds: float = DRAIN_SECONDS) -> None:
        """Take it from the gateways, wait for answers in flight, end it. It stays down.

        Goes on where another has begun. Raises FleetRefused if it is restarted meanwhile.
        """
        self.record.running = False
        self._save()
        async with self._turn:
            if not await self._end_gently(grace_seconds):
                raise FleetRefused(f"{self.planned.id} was restarted, so it is not drained.")

    async def replace(self, ready_seconds: float) -> None:
        """Drain it and start what it is to be next. Raises SpecMalformed before anything is
        drained; FleetRefused, CrashLooping if that does not get ready; and OSError."""
        async with self._turn:
            if self.next is not None:
                require_source(self.next.spec, self._base)
            self._leaving = self.record.running and self.next is not None
            try:
                if not self._leaving or not await self._end_gently(DRAIN_SECONDS):
                    return
            finally:
                self._leaving = False
            self.up()
            await self._until_ready(ready_seconds)

    async def _end_gently(self, grace_seconds: float) -> bool:
        """End it once its answers are written, unless it is wanted again: whether it ended."""
        for keeper in self._keepers.values():
            keeper.leave()
        if self.record.lives:
            await asyncio.sleep(NOTICE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._until_idle()
        if self._up:
            return False
        await self.stop(GRACE_SECONDS)
        return True

    async def end(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End it for good, whatever else is done to it at this moment."""
        self._over = True
        await self.stop(grace_seconds)

    async def stop(self, grace_seconds: float) -> None:
        """End every process: workers last, since the frontend's answers need them."""
        keepers = {name: self._of(name) for name in self.record.processes}
        frontend = keepers.pop("frontend", None)
        if frontend is not None:
            await frontend.end(grace_seconds)
        await asyncio.gather(*(keeper.end(grace_seconds) for keeper in keepers.values()))
        self._keepers.clear()
        self._save()

    async def restart(self, name: str | None, ready_seconds: float) -> None:
        """Replace one process, or all workers of the deployment, one after another.

        A deployment that was drained is started; one that is being drained goes on. Raises
        FleetRefused, OSError.
        """
        if not self.record.running:
            self.record.running = True
            self._save()
            async with self._turn:  # what is being ended has to be gone first
                self.up()
            return
        async with self._turn:
            await self._restart(name, ready_seconds)

    async def _restart(self, name: str | None, ready_seconds: float) -> None:
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

    @property
    def _frontend(self) -> Identity | None:
        """The process, if it lives."""
        record = self.record.processes.get("frontend")
        return record.identity if record is not None and record.lives else None

    async def _heard(self) -> Readiness | None:
        """What its own frontend says. Whoever else answers on its port says nothing."""
        frontend = self._frontend
        if frontend is None:
            return None
        seen = await self._prober.readiness(self.record.port, self.planned.spec.model.id)
        if seen is None or not frontend.alive:
            return None
        if frontend != self._proven and not listens(frontend, self.record.port):
            return None
        self._proven = frontend
        return seen

    def _note_serving(self, seen: Readiness, alive: Sequence[Keeper]) -> None:
        """Tell those that serve. Of a pool it is known when all that run are counted."""
        running = Counter(keeper.record.process.role for keeper in alive)
        news = False
        for keeper in alive:
            role = keeper.record.process.role
            if seen.workers.get(role, 0) >= running[role] or (role == "frontend" and seen.workers):
                news |= keeper.note_serving()
        if news:
            self._save()

    async def _until_idle(self) -> None:
        """Return when no request is in flight, none can be counted, or it is wanted again."""
        while not self._up:
            if self._frontend is None or not await self._prober.in_flight(self.record.port):
                return
            await asyncio.sleep(DRAIN_LOOK_SECONDS)

    async def _until_ready(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await self.look()
            if self._lifecycle.state == "ready":
                return
            if not self.record.running or self._over:
                raise FleetRefused(f"{self.planned.id} was drained meanwhile.")
            for keeper in self._keepers.values():
                require_hope(self.planned.id, keeper.status())
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        raise FleetRefused(f"{self.planned.id} was not whole again within {seconds:.0f} s.")

    def _of(self, name: str) -> Keeper:
        return self._keepers.get(name) or self._keeper(self.record.processes[name])

    def _keeper(self, record: ProcessRecord) -> Keeper:
        return Keeper(
            record,
            self._start,
            self._save,
            self._responds,
            self._folder.log_file(self.planned.id, record.process.name),
            deployment=self.planned.id,
        )

    def _start(self, record: ProcessRecord) -> int:
        """Raises SpecMalformed, OSError."""
        if self._processes.move(record):
            self._save()
        process = record.process
        return start(
            [self._python, *process.argv],
            process.environment,
            self._folder.log_file(self.planned.id, process.name),
            fleet=str(self._folder.folder),
            name=f"{self.planned.id}/{process.name}",
            record=carried(self.record, process),
        )

    async def _responds(self, record: ProcessRecord) -> bool:
        return await self._prober.responds(record.process.port, "/live")
