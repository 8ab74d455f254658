"""One measurement, from warm-up to the last record."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from prime_inference.bench.agents.cold import ColdStream
from prime_inference.bench.agents.http_stream import StreamClient, clock
from prime_inference.bench.agents.lag import LagProbe
from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.plan import Fault, Options, Point
from prime_inference.bench.agents.play import PlayOptions
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.sender import Sender
from prime_inference.bench.agents.sessions import Lanes, OpenSessions, Trees
from prime_inference.bench.agents.tool_calls import Tools
from prime_inference.bench.agents.vocabulary import Vocabulary
from prime_inference.bench.agents.workload import Workload

YOUNG_OBJECTS = 100_000  # between collections: one costs milliseconds once thousands stream


class FaultRun(msgspec.Struct, frozen=True):
    """A fault as it happened: seconds since the point began, and the command's exit code.

    `cut` says that the command still ran at the point's end and was ended.
    """

    at: float
    command: str
    code: int
    cut: bool = False

    @property
    def told(self) -> str:
        """The command, and what became of it where it did not go well."""
        if self.cut:
            return f"{self.command} (still ran at the end)"
        return f"{self.command} (exit code {self.code})" if self.code else self.command


class PointRun(msgspec.Struct, frozen=True, kw_only=True):
    """A finished point. Profiling lay between `start` and `end`, seconds since it began.

    `lag_p99` is the event loop's, `send_lag_p99` that of sends behind what was due; `load`
    is the machine's load average over a minute, before and after.
    """

    point: Point
    number: int
    start: float
    end: float
    lag_p99: float
    send_lag_p99: float
    load: tuple[float, float]
    faults: tuple[FaultRun, ...] = ()
    skipped: float = 0.0  # seconds by which `system_idle_cap` brought turns forward

    def late(self, bound: float) -> bool:
        """Whether the generator was later than `bound` seconds."""
        return max(self.lag_p99, self.send_lag_p99) > bound


class Measurement:
    """Runs points against one endpoint."""

    def __init__(
        self, client: StreamClient, model: str, workload: Workload, options: Options, *,
        vocabulary: Vocabulary | None, nonce: str, tools: Tools | None = None,
    ) -> None:  # fmt: skip
        self._client = client
        self._model = model
        self._workload = workload
        self._options = options
        self._vocabulary = vocabulary
        self._nonce = nonce
        self._tools = tools

    async def run(self, point: Point, number: int, sink: Callable[[Record], None]) -> PointRun:
        """Warm up, measure, wait for what is in flight. Cancelling ends it with every record."""
        options = self._options
        lags: list[float] = []
        load_before = os.getloadavg()[0]
        sender = self._sender(number, lambda record: _take(record, lags, sink))
        play = PlayOptions(
            seed=point.seed, nonce=f"{self._nonce} {number}", vocabulary=self._vocabulary,
            cancel_share=options.cancel_share,
        )  # fmt: skip
        trees = Trees(self._workload, sender, play)
        faults: list[FaultRun] = []
        with rare_collections():
            load: list[Coroutine[Any, Any, None]] = []
            start = 0.0
            if options.session_rate is None and point.sessions:
                lanes = Lanes(trees, point.sessions, options, point.seed)
                await lanes.warm_up()
                start = sender.now
                load.append(lanes.run(start))
            elif options.session_rate is not None:
                load.append(OpenSessions(trees, options.session_rate, options, point.seed).run(0.0))
            if point.cold_rate:
                load.append(self._cold(sender, point, play.nonce).run(start))
            # a point lasts its seconds even if nothing is due any more
            load.append(asyncio.sleep(start + options.seconds - sender.now))
            async with LagProbe() as probe, FaultRuns(options.faults, sender, start, faults):
                await _bounded(load, start + options.seconds + options.grace - sender.now)
                end = sender.now
        return PointRun(
            point=point, number=number, start=start, end=end,
            lag_p99=_p99(probe.samples), send_lag_p99=_p99(lags),
            load=(load_before, os.getloadavg()[0]), faults=tuple(faults),
            skipped=sender.idle.skipped,
        )  # fmt: skip

    def _sender(self, number: int, sink: Callable[[Record], None]) -> Sender:
        extra: Mapping[str, Any] = self._options.extra
        if self._options.ignore_eos:
            extra = {"ignore_eos": True, **extra}
        threaded = any(t.threaded for s in self._workload.sessions for t in s.turns)
        return Sender(
            self._client, self._model, sink, point=number, origin=clock(),
            seconds=self._options.timeout, extra=extra, tools=self._tools, keep_text=threaded,
            idle_cap=self._idle_cap,
        )  # fmt: skip

    @property
    def _idle_cap(self) -> float | None:
        """An open loop keeps to its schedule, whatever is in flight."""
        return self._options.system_idle_cap if self._options.session_rate is None else None

    def _cold(self, sender: Sender, point: Point, nonce: str) -> ColdStream:
        assert self._vocabulary is not None, "cold arrivals are made of the vocabulary"
        return ColdStream(sender, self._vocabulary, self._options, point, nonce)


def _take(record: Record, lags: list[float], sink: Callable[[Record], None]) -> None:
    if record.phase == "profiling":
        lags.append(record.lag)
    sink(record)


def _p99(samples: list[float]) -> float:
    return percentile(samples, 99) if samples else 0.0


async def _bounded(load: list[Coroutine[Any, Any, None]], seconds: float) -> None:
    """Run all of it for at most `seconds`; what is left is cancelled and settles itself."""
    tasks = [asyncio.create_task(part) for part in load]
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            if (error := task.exception()) is not None:
                raise _first(error)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(error: BaseException) -> BaseException:
    """What went wrong, out of the group that a task group makes of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class FaultRuns:
    """Runs every fault at its time, beside each other; what still runs at the exit is ended."""

    def __init__(
        self, faults: Iterable[Fault], sender: Sender, start: float, ran: list[FaultRun]
    ) -> None:
        self._faults = faults
        self._sender = sender
        self._start = start
        self._ran = ran
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._run(fault)) for fault in self._faults]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ran.sort(key=lambda run: run.at)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def _run(self, fault: Fault) -> None:
        await asyncio.sleep(self._start + fault.at - self._sender.now)
        process = await asyncio.create_subprocess_exec(*fault.arguments)
        at = self._sender.now
        cut = False
        try:
            await process.wait()
        except asyncio.CancelledError:
            process.kill()
            cut = True
        self._ran.append(FaultRun(at, fault.command, await process.wait(), cut))


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """What exists now is not looked at again, and the young are looked at rarely."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
