"""A whole run: calibrate, measure every point, write every record."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from prime_inference.bench.agents.endpoint import Endpoint
from prime_inference.bench.agents.http_stream import Address, StreamClient
from prime_inference.bench.agents.metrics import Hardware, Slo, class_metrics
from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.plan import Options, Plan, Point
from prime_inference.bench.agents.point import Measurement, PointRun
from prime_inference.bench.agents.provenance import MOCK_NOTICE, Provenance, provenance
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.results import FILE, ResultsFile, resumed
from prime_inference.bench.agents.search import Search, find_concurrency
from prime_inference.bench.agents.tool_calls import Tools
from prime_inference.bench.agents.vocabulary import Vocabulary, calibrate
from prime_inference.bench.agents.workload import Workload

PAUSE = 0.5  # seconds between points, for a server to notice that clients have left


class Progress(Protocol):
    """Who is told how a run goes."""

    def point(self, point: Point, number: int, of: int | None) -> None: ...
    def record(self, record: Record, in_flight: int) -> None: ...
    def done(self, run: PointRun) -> None: ...


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure and as whom. `simulated` is said on every figure."""

    base_url: str
    model: str
    headers: bytes = b""
    simulated: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def sweep(
    concurrency: Sequence[int], cold_rates: Sequence[float], seeds: Sequence[int]
) -> tuple[Point, ...]:
    """Every combination; seeds change slowest, so that a half of a run is a whole sweep."""
    combined = itertools.product(seeds, cold_rates, concurrency)
    return tuple(Point(sessions, rate, seed) for seed, rate, sessions in combined)


class Run:
    """One run into one folder. Enter it, then `measure` or `search`.

    `cold` says that points have cold arrivals, which need a vocabulary even beside a trace of
    texts. Raises EndpointRefused, CalibrationFailed on entering.
    """

    def __init__(
        self, target: Target, workload: Workload, options: Options, folder: Path,
        progress: Progress, *, tools: Tools | None = None, cold: bool = False,
    ) -> None:  # fmt: skip
        self._target = target
        self._workload = workload
        self._options = options
        self._folder = folder
        self._progress = progress
        self._tools = tools
        self._cold = cold
        self._client: StreamClient = None  # type: ignore[assignment]  # set on entering
        self._vocabulary: Vocabulary | None = None
        self._provenance: Provenance = None  # type: ignore[assignment]  # set on entering

    async def __aenter__(self) -> Run:
        address = Address.parse(self._target.base_url)
        self._client = StreamClient(address, headers=self._target.headers)
        endpoint = Endpoint(self._client, self._target.model, self._extra(), self._options.timeout)
        try:
            simulated = list(self._target.simulated)
            if await endpoint.is_mock():
                simulated.insert(0, MOCK_NOTICE)
            self._vocabulary = await calibrate(endpoint.count) if self._counts() else None
        except BaseException:
            self._client.close()
            raise
        self._provenance = provenance(
            base_url=self._target.base_url, model=self._target.model,
            served_by=endpoint.served_by, workload_notes=self._workload.notes,
            simulated=tuple(simulated), notes=self._target.notes,
        )  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.close()

    def _extra(self) -> Mapping[str, Any]:
        """What goes into every body and changes how prompts are counted."""
        extra = dict(self._options.extra)
        if self._tools is not None:
            extra["tools"] = self._tools.definitions
        return extra

    def _counts(self) -> bool:
        return self._cold or any(
            turn.messages is None for s in self._workload.sessions for turn in s.turns
        )

    def _plan(self, points: tuple[Point, ...]) -> Plan:
        return Plan(
            workload=self._workload.name, workload_sha256=self._workload.sha256,
            form=self._workload.form, base_url=self._target.base_url,
            tools_sha256=None if self._tools is None else self._tools.sha256,
            model=self._target.model, points=points, options=self._options,
        )  # fmt: skip

    def _measurement(self) -> Measurement:
        return Measurement(
            self._client, self._target.model, self._workload, self._options,
            vocabulary=self._vocabulary, nonce=self._provenance.nonce, tools=self._tools,
        )  # fmt: skip

    async def measure(self, points: tuple[Point, ...], *, resume: bool = False) -> None:
        """Measure the points that are not in the folder yet. Raises ResultsInvalid."""
        plan = self._plan(points)
        path = self._folder / FILE
        records: list[Record] = []
        finished: list[PointRun] = []
        told = self._provenance
        if resume and path.exists():
            records, finished, told = resumed(path, plan, told)
        there = {run.point for run in finished}
        with ResultsFile(path, told, plan, records, finished) as results:
            for number, point in enumerate(points):
                if point not in there:
                    await self._point(results, point, number, len(points))
            results.complete()

    async def search(
        self, slo: Slo, *, start: int, highest: int, cold_rate: float, seeds: Sequence[int]
    ) -> Search:
        """The largest concurrency whose P90 E2E interactivity of session turns holds
        `slo.e2e` in the median over `seeds`."""
        assert slo.e2e is not None, "a search needs a target"
        target = slo.e2e
        numbers = itertools.count()
        path = self._folder / FILE
        with ResultsFile(path, self._provenance, self._plan(())) as results:

            async def holds(sessions: int) -> bool:
                speeds = []
                for seed in seeds:
                    point = Point(sessions, cold_rate, seed)
                    records = await self._point(results, point, next(numbers), None)
                    speeds.append(_session_speed(records))
                return percentile(speeds, 50) >= target

            found = await find_concurrency(holds, start=start, highest=highest)
            results.complete()
        return found

    async def _point(
        self, results: ResultsFile, point: Point, number: int, of: int | None
    ) -> list[Record]:
        """Measure one point; its records."""
        self._progress.point(point, number, of)
        records: list[Record] = []

        def take(record: Record) -> None:
            records.append(record)
            results.add(record)
            self._progress.record(record, self._client.in_flight)

        run = await self._measurement().run(point, number, take)
        results.finish_point(run)
        self._progress.done(run)
        await asyncio.sleep(PAUSE)
        return records


def _session_speed(records: Sequence[Record]) -> float:
    """P90 E2E interactivity of a point's session turns; 0 if one in ten failed."""
    turns = [r for r in records if r.phase == "profiling" and r.kind != "cold"]
    found = class_metrics(turns, slo=Slo(), hardware=Hardware(), span=1.0)
    if not found.ok or found.failed > 0.1 * (found.ok + found.failed):
        return 0.0
    return found.e2e_norm_intvty.p90
