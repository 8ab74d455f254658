"""Keeps one process of a fleet alive, or ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from prime_inference.domain.backoff import Backoff
from prime_inference.fleet.launcher.processes import Identity, end_group, ended, identity_of, reap
from prime_inference.fleet.launcher.state import ProcessRecord
from prime_inference.reliability.background import Background

log = logging.getLogger(__name__)

ProcessState = Literal["running", "waiting", "stopping", "stopped"]

PROBE_EVERY_SECONDS = 2.0
PROBES_MISSED = 5  # with their 2 s each: frozen for 20 s, longer than a worker's warm-up blocks it
GRACE_SECONDS = 30.0  # Dynamo finishes answers after SIGTERM; Kubernetes waits as long


class Keeper:
    """Starts a process unless it runs already, and again whenever it ends.

    `start` starts it and gives its id; `started` is called after each start, with the record
    changed. `responds` is asked while it runs; a process that answered once and then misses
    `PROBES_MISSED` questions is killed, since a frozen one helps nobody.
    """

    def __init__(
        self,
        record: ProcessRecord,
        start: Callable[[ProcessRecord], int],
        started: Callable[[], None],
        responds: Callable[[ProcessRecord], Awaitable[bool]],
        *,
        deployment: str = "",
        probe_seconds: float = PROBE_EVERY_SECONDS,
    ) -> None:
        name = record.process.name
        self._name = f"deployment {deployment}: {name}" if deployment else name  # in the log
        self.record = record
        self._start = start
        self._started = started
        self._responds = responds
        self._probe_seconds = probe_seconds
        self._task: asyncio.Task[None] | None = None
        self.state: ProcessState = "waiting"
        self.restarts = 0

    @property
    def alive(self) -> bool:
        identity = self.record.identity
        return identity is not None and identity.alive

    def run(self) -> None:
        """Start keeping."""
        background = Background(asyncio.get_running_loop().time)
        self._task = background.start(self._name, self._keep)

    def leave(self) -> None:
        """Stop watching; the process goes on."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the process and what it started."""
        self.leave()
        self.state = "stopping"
        await self._end(grace_seconds)
        self.state = "stopped"

    async def restart(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the process and start it again at once."""
        await self.stop(grace_seconds)
        self.run()

    async def _end(self, grace_seconds: float) -> None:
        identity = self.record.identity
        if identity is not None:
            await end_group(identity, grace_seconds)
            reap(identity.pid)
        self.record.pid = 0

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while True:
            began = loop.time()
            try:
                identity = self._running()
            except OSError as error:  # no memory for a process, or no such interpreter
                log.error("%s cannot be started: %s", self._name, error)
            else:
                self.state = "running"
                await self._until_ended(identity)
                log.warning("%s ended", self._name)
                await self._end(0.0)  # what it started may live on
            self.state = "waiting"
            await asyncio.sleep(backoff.pause(loop.time() - began))
            self.restarts += 1

    def _running(self) -> Identity:
        """The process: one that was found running, or a new one. Raises OSError."""
        identity = self.record.identity
        if identity is not None and identity.alive:
            return identity
        pid = self._start(self.record)
        identity = identity_of(pid) or Identity(pid, 0)  # 0: it has ended already
        self.record.pid, self.record.started = identity.pid, identity.started
        self._started()
        return identity

    async def _until_ended(self, identity: Identity) -> None:
        """Return when it ended, or was killed because it is frozen."""
        end = asyncio.ensure_future(ended(identity))
        answered, missed = False, 0
        try:
            while not (await asyncio.wait({end}, timeout=self._probe_seconds))[0]:
                if await self._responds(self.record):
                    answered, missed = True, 0
                elif answered:
                    missed += 1
                if missed >= PROBES_MISSED:
                    log.error("%s answers no more; killing it", self._name)
                    return
        finally:
            end.cancel()
