"""Judges the calls of answers that have been given: which were valid, by deployment.

What is surely little work is judged at once, a few microseconds a call. The rest goes to a
process of its own, one answer after the other; it is started when it is first needed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from prime_inference.domain.tool_verdict import TOOL_ERRORS, ToolVerdict
from prime_inference.gateway.toolcalls.worker import LENGTH_BYTES, Job, framed, verdicts
from prime_inference.ports.tool_verdicts import ToolVerdictSink
from prime_inference.toolcalls.effort import is_little_work
from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import fault

MOST_WAITING_BYTES = 64 * 1024 * 1024  # of jobs: beyond that, answers go unjudged

NamedCall = tuple[str, str]  # name and arguments


class Judge:
    """Hands a verdict on each answer to every sink."""

    def __init__(self, sinks: Sequence[ToolVerdictSink]) -> None:
        self._sinks = sinks
        self._waiting: deque[tuple[bytes, ToolVerdict]] = deque()
        self._waiting_bytes = 0
        self._working: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def add(self, verdict: ToolVerdict, calls: Sequence[NamedCall], tools: dict[str, Tool]) -> None:
        """Complete a verdict by what is wrong with the calls, now or later."""
        found: set[str] = set(verdict.errors)
        hard: list[tuple[Tool, str]] = []
        for name, arguments in calls:
            tool = tools.get(name)
            if tool is not None and not is_little_work(arguments, tool):
                hard.append((tool, arguments))
            elif (bucket := fault(arguments, tool)) is not None:
                found.add(bucket)
        verdict = _with(verdict, found)
        if not hard:
            self._give(verdict)
            return
        job = framed(_job(hard))
        if self._waiting_bytes + len(job) > MOST_WAITING_BYTES:
            self._give(msgspec.structs.replace(verdict, judged=False))
            return
        self._waiting.append((job, verdict))
        self._waiting_bytes += len(job)
        if self._working is None:
            self._working = asyncio.get_running_loop().create_task(self._work())

    async def close(self) -> None:
        """Stop; what waits is not judged."""
        self._waiting.clear()
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait([self._working])
        await self._stop()

    # -- the process

    async def _work(self) -> None:
        try:
            while self._waiting:
                job, verdict = self._waiting[0]
                found = await self._ask(job)
                self._waiting.popleft()
                self._waiting_bytes -= len(job)
                if found is None:
                    self._give(msgspec.structs.replace(verdict, judged=False))
                else:
                    self._give(_with(verdict, {*verdict.errors, *found}))
        finally:
            self._working = None

    async def _ask(self, job: bytes) -> list[str] | None:
        """The buckets of a job's calls; None if it was too much work."""
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(job)
            await process.stdin.drain()
            length = await process.stdout.readexactly(LENGTH_BYTES)
            return verdicts.decode(await process.stdout.readexactly(int.from_bytes(length, "big")))
        except (asyncio.IncompleteReadError, ConnectionError):  # the kernel ended it
            await self._stop()
            return None

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "prime_inference.gateway.toolcalls.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # a traceback would quote arguments
                start_new_session=True,
            )
        return self._process

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.communicate()  # closes the pipes as well

    def _give(self, verdict: ToolVerdict) -> None:
        for sink in self._sinks:
            sink.judged(verdict)


def _job(calls: Iterable[tuple[Tool, str]]) -> Job:
    schemas: dict[bytes, int] = {}
    numbered = []
    for tool, arguments in calls:
        schema = msgspec.json.encode(tool.parameters)
        numbered.append((schemas.setdefault(schema, len(schemas)), arguments))
    return Job(list(schemas), numbered)


def _with(verdict: ToolVerdict, found: set[str]) -> ToolVerdict:
    errors = tuple(error for error in TOOL_ERRORS if error in found)
    return verdict if errors == verdict.errors else msgspec.structs.replace(verdict, errors=errors)
