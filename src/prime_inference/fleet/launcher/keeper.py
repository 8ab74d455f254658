"""Keeps one process of a fleet alive, or ends it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from prime_inference.domain.backoff import Backoff
from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.launcher.exits import Exit, cause_of, last_words
from prime_inference.fleet.launcher.processes import Identity, end_group, ended, identity_of, reap
from prime_inference.fleet.launcher.state import ProcessRecord
from prime_inference.reliability.background import Background

log = logging.getLogger(__name__)

ProcessState = Literal["running", "waiting", "crash-looping", "stopping", "stopped"]

CRASH_LOOP = 3  # runs in a row that ended soon: twice may be chance, or a port not yet free

PROBE_EVERY_SECONDS = 2.0
PROBES_MISSED = 5  # with their 2 s each: frozen for 20 s, longer than a worker's warm-up blocks it
GRACE_SECONDS = 30.0  # Dynamo finishes answers after SIGTERM; Kubernetes waits as long


class Keeper:
    """Starts a process unless it runs already, and again whenever it ends.

    `start` starts it and gives its id; `started` is called after each start, with the record
    changed. `responds` is asked while it runs; a process that answered once, or has served, and
    then misses `PROBES_MISSED` questions is killed, since a frozen one helps nobody. `log` is where
    it writes. Whoever sees it serve says so with `note_serving`: only a run that served can end
    what `Backoff` and CRASH_LOOP count, since a large model may take minutes to fail.
    """

    def __init__(
        self,
        record: ProcessRecord,
        start: Callable[[ProcessRecord], int],
        started: Callable[[], None],
        responds: Callable[[ProcessRecord], Awaitable[bool]],
        log: Path,
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
        self._log = log
        self._log_begin = 0  # of this run, in bytes
        self._task: asyncio.Task[None] | None = None
        self._phase: ProcessState = "running" if record.lives else "waiting"
        self._serves = False  # in this run
        self._over = False
        self._forget()

    def _forget(self) -> None:
        self._backoff = Backoff()
        self.served = False  # ever, as the others: since it was started or restarted by hand
        self.restarts = 0
        self.last_exit: Exit | None = None

    @property
    def state(self) -> ProcessState:
        """Crash-looping until it serves, whether it waits or has just been started again."""
        ends_again = self._backoff.short_runs >= CRASH_LOOP and not self._serves
        return "crash-looping" if ends_again and self._task is not None else self._phase

    def status(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "name": self.record.process.name,
            "state": self.state,
            "pid": self.record.pid,
            "port": self.record.process.port,
            "served": self.served,
            "restarts": self.restarts,
            "last_exit": msgspec.to_builtins(self.last_exit),
        }

    def note_serving(self) -> bool:
        """It does now what it is for. Whether that is news, which the state should have."""
        news = not self.record.served
        self._serves = self.served = self.record.served = True
        return news

    @property
    def alive(self) -> bool:
        return self.record.lives

    def run(self) -> None:
        """Start keeping, unless it is kept already, or was ended for good."""
        if self._task is not None or self._over:
            return
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
        self._phase = "stopping"
        await self._end(grace_seconds)
        self._phase = "stopped"

    async def end(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Stop it for good: whoever is restarting it at this moment does not start it again."""
        self._over = True
        await self.stop(grace_seconds)

    async def restart(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End the process and start it again at once; what was counted is forgotten."""
        await self.stop(grace_seconds)
        self._forget()
        self.run()

    async def _end(self, grace_seconds: float) -> int | None:
        """Its exit status, where that is known."""
        identity = self.record.identity
        status = None
        if identity is not None:
            await end_group(identity, grace_seconds)
            status = reap(identity.pid)
        if not self.record.lives:  # a device may hold it
            self.record.pid = 0
        return status

    async def _keep(self) -> None:
        while True:
            self.last_exit = ended_so = await self._one_run()
            pause = self._backoff.pause(ended_so.ran_seconds if self._serves else 0.0)
            self._phase, self._serves = "waiting", False
            self._tell(ended_so, pause)
            await asyncio.sleep(pause)
            self.restarts += 1

    async def _one_run(self) -> Exit:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            identity = self._running()
        except OSError as error:  # no memory for a process, or no such interpreter
            return Exit(f"cannot be started: {error.strerror or error}", None, 0.0, ())
        except FleetError as error:  # its model is gone
            return Exit(f"cannot be started: {error}", None, 0.0, ())
        self._phase = "running"
        frozen = await self._until_ended(identity)
        ran = loop.time() - began
        status = await self._end(0.0)  # what it started may live on
        cause = "killed, since it answered no more" if frozen else cause_of(status)
        return Exit(cause, status, ran, last_words(self._log, self._log_begin))

    def _tell(self, ended_so: Exit, pause: float) -> None:
        words = f": {ended_so.log[-1]}" if ended_so.log else ""
        times = self._backoff.short_runs
        log.warning("%s ended (%s); again in %.1f s%s", self._name, ended_so.cause, pause, words)
        if times == CRASH_LOOP:
            log.error("%s is crash-looping: it ended %d times in a row", self._name, times)

    def _running(self) -> Identity:
        """The process: one that was found running, or a new one. Raises OSError, FleetError."""
        identity = self.record.identity
        if identity is not None and self.record.lives:
            return identity
        self._log_begin = self._log.stat().st_size if self._log.exists() else 0
        pid = self._start(self.record)
        identity = identity_of(pid) or Identity(pid, 0)  # 0: it has ended already
        self.record.pid, self.record.started = identity.pid, identity.started
        self.record.served = False
        self._started()
        return identity

    async def _until_ended(self, identity: Identity) -> bool:
        """Return when it ended, or is to be killed because it is frozen: whether it is."""
        end = asyncio.ensure_future(ended(identity))
        answered, missed = self.record.served, 0  # by another supervisor too
        try:
            while not (await asyncio.wait({end}, timeout=self._probe_seconds))[0]:
                if await self._responds(self.record):
                    answered, missed = True, 0
                elif answered:
                    missed += 1
                if missed >= PROBES_MISSED:
                    log.error("%s answers no more; killing it", self._name)
                    return True
            return False
        finally:
            end.cancel()
