"""What is measured, and in which order.

Subjects take turns: direct, ours, first peer, ours, second peer, ours, ... so that every
peer has a neighbour of ours in time. Whoever is not being measured is stopped with
SIGSTOP, so that its background work costs the others nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec

from prime_inference.bench.gateway import nginx
from prime_inference.bench.gateway.accounts import Billed, measure
from prime_inference.bench.gateway.load import Load, Target, generator_name, run_load, run_module
from prime_inference.bench.gateway.machine import Cores, choose_cores, describe
from prime_inference.bench.gateway.process import StartFailed, core_seconds
from prime_inference.bench.gateway.results import (
    CpuTime,
    Footprint,
    Results,
    Settings,
    Streams,
    WholeAnswers,
)
from prime_inference.bench.gateway.search import largest
from prime_inference.bench.gateway.streams import StreamLoad
from prime_inference.bench.gateway.subjects import DIRECT, OURS, Running, Subject
from prime_inference.bench.gateway.upstream import (
    MESSAGES,
    STREAM_BODY,
    WHOLE_BODY,
    Upstream,
    start_fixed,
    start_mock,
)
from prime_inference.engines.mock import expected_text
from prime_inference.wire.sse import DONE, SseFramer

WARM_SECONDS = 1.0  # connections opened, code paths compiled, caches filled
SETTLE_SECONDS = 1.0  # before memory is read
FEW_ANSWERS = 4  # for each connection; below that a measurement is repeated, longer
SLOW_FACTOR = 5
GAP_FACTOR = 10  # a frame later than ten times the pace is a stall
FIRST_FACTOR = 50  # a first event later than a second: the stream waits in a queue
ERROR_SHARE = 0.001  # of streams

Say = Callable[[str], None]


class Broken(Exception):
    """A subject does not pass on what the upstream said."""


def run(
    subjects: Sequence[Subject], settings: Settings, say: Say, *, ours: str = OURS.name
) -> Results:
    """Measure all subjects that can be; `say` gets a line for every step.

    `ours` names the one that takes a turn beside each of the others.
    """
    left_out = {s.name: reason for s in subjects if (reason := s.missing())}
    present = [s for s in subjects if s.name not in left_out]
    for name, reason in left_out.items():
        say(f"left out: {name}: {reason}")
    results = Results(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe(),
        cores=choose_cores(),
        settings=settings,
        ours=ours,
        generator=generator_name(),
        whole_upstream="",
        versions={s.name: s.version() for s in present},
        left_out=left_out,
    )
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as name:
        campaign = Campaign(present, results, Path(name), say)
        campaign.whole_answers()
        campaign.streams()
    return results


class Campaign:
    """One run over all subjects; fills `results`."""

    def __init__(
        self, subjects: Sequence[Subject], results: Results, folder: Path, say: Say
    ) -> None:
        self._subjects = list(subjects)
        self._results = results
        self._settings = results.settings
        self._cores: Cores = results.cores
        self._folder = folder
        self._say = say
        self._whole_body = _write(folder / "whole.json", WHOLE_BODY)
        self._stream_body = _write(folder / "stream.json", STREAM_BODY)

    # -- whole answers

    def whole_answers(self) -> None:
        """Requests a second, latencies, CPU time, memory before and after."""
        with ExitStack() as stack:
            upstream = self._whole_upstream(stack)
            self._results.whole_upstream = upstream.name
            running = self._start_all(upstream, self._folder / "whole", stack)
            for name, subject in running.items():
                if subject.child is not None:
                    idle = Footprint(idle_mib=subject.child.memory_mib())
                    self._results.memory[name] = idle
            for subject in running.values():
                with _awake(subject):
                    self._load(subject, max(self._settings.connections), WARM_SECONDS)
            for number in range(self._settings.rounds):
                for connections in self._settings.connections:
                    for subject in turns(running, self._results.ours):
                        self._measure_whole(subject, number, connections)
            for name, footprint in self._memory_of(running):
                self._results.memory[name].after_load_mib = footprint
            if OURS.name in running:
                self._measure_accounts(upstream, running[OURS.name], stack)

    def _measure_accounts(self, upstream: Upstream, plain: Running, stack: ExitStack) -> None:
        """What a price and a budget cost, and how fast usage is shipped."""
        assert plain.child is not None
        self._say("starting a gateway with accounts")
        core, most = self._cores.subject, max(self._settings.connections)
        database = self._settings.database
        billed = Billed(upstream, self._folder / "whole", core, database)
        stack.callback(billed.child.stop)

        def ask(target: Target) -> Load:
            return run_load(
                target, self._whole_body, connections=most,
                seconds=self._settings.load_seconds, core=self._cores.load,
            )  # fmt: skip

        found = self._results.accounts = measure(
            plain.child, plain.target, billed, ask,
            rounds=self._settings.rounds, connections=most, database=database,
        )  # fmt: skip
        billed.child.pause()
        self._say(
            f"accounts: {found.billed_us:.1f} us a request, {found.plain_us:.1f} without;"
            f" {found.shipped_per_second:,.0f} events/s shipped into {found.database}"
        )

    def _whole_upstream(self, stack: ExitStack) -> Upstream:
        """nginx where there is one; the mock engine is slower than what is to be measured."""
        mock = start_mock(self._folder / "upstream", self._cores.load, pace_ms=0)
        if nginx.missing() is not None:
            stack.callback(mock.child.stop)
            return mock
        try:
            fixed = start_fixed(self._folder / "upstream", self._cores.load, mock)
        finally:
            mock.child.stop()
        stack.callback(fixed.child.stop)
        return fixed

    def _load(self, subject: Running, connections: int, seconds: float) -> Load:
        return run_load(
            subject.target, self._whole_body,
            connections=connections, seconds=seconds, core=self._cores.load,
        )  # fmt: skip

    def _metered_load(
        self, subject: Running, connections: int, seconds: float
    ) -> tuple[Load, CpuTime]:
        meter = Meter(subject, self._cores.subject)
        load = self._load(subject, connections, seconds)
        return load, meter.read()

    def _measure_whole(self, subject: Running, number: int, connections: int) -> None:
        with _awake(subject):
            load, cpu = self._metered_load(subject, connections, self._settings.load_seconds)
            if load.requests < FEW_ANSWERS * connections:
                longer = SLOW_FACTOR * self._settings.load_seconds
                load, cpu = self._metered_load(subject, connections, longer)
        order = len(self._results.whole)
        self._results.whole.append(
            WholeAnswers(subject.name, number, order, connections, load, cpu)
        )
        self._say(
            f"round {number + 1}  c={connections:<3} {subject.name:<16}"
            f" {load.per_second:>9,.0f} req/s  p50 {load.p50_ms:.3f} ms  p99 {load.p99_ms:.3f} ms"
            + (f"  {load.errors} ERRORS" if load.errors else "")
        )

    # -- streams

    def streams(self) -> None:
        """Added latencies at a number that all carry, then the most that each carries."""
        with ExitStack() as stack:
            mock = start_mock(
                self._folder / "mock", self._cores.load, pace_ms=self._settings.pace_ms
            )
            stack.callback(mock.child.stop)
            running = self._start_all(mock, self._folder / "streams", stack)
            events = self._probe_all(running)
            rounds = range(self._settings.stream_rounds)
            for number in rounds:
                for subject in turns(running, self._results.ours):
                    self._measure_latency(subject, number, events[subject.name])
            for number in rounds if self._settings.most_streams else ():
                for subject in running.values():
                    self._find_most(subject, number, events[subject.name])
            for name, footprint in self._memory_of(running):
                if name in self._results.memory:
                    self._results.memory[name].after_streams_mib = footprint

    def _probe_all(self, running: dict[str, Running]) -> dict[str, int]:
        """Events of one stream of each; drops who does not pass the whole text on."""
        events = {}
        for name, subject in list(running.items()):
            try:
                with _awake(subject):
                    events[name] = probe(subject)
            except Broken as broken:
                self._say(f"left out of streams: {name}: {broken}")
                self._results.left_out[f"{name} (streams)"] = str(broken)
                del running[name]
        return events

    def _measure_latency(self, subject: Running, number: int, events: int) -> None:
        streams = self._stream(subject, number, self._settings.latency_streams, events)
        self._results.latency.append(streams)
        load = streams.load
        self._say(
            f"round {number + 1}  {load.streams} streams  {subject.name:<16}"
            f" first event p50 {load.ttft_p50_ms:.2f} p99 {load.ttft_p99_ms:.2f} ms,"
            f" gap p50 {load.gap_p50_ms:.2f} p99 {load.gap_p99_ms:.2f} ms"
        )

    def _find_most(self, subject: Running, number: int, events: int) -> None:
        def passes(streams: int) -> bool:
            tried = self._stream(subject, number, streams, events, give_up=True)
            self._results.tries.append(tried)
            return tried.carried

        start = self._settings.first_streams
        if not all(m.carried for m in self._results.latency if m.subject == subject.name):
            start = 1  # numbers that are too large take longest to try
        most = largest(passes, start, self._settings.most_streams)
        self._results.most.setdefault(subject.name, []).append(most)
        self._say(f"round {number + 1}  {subject.name:<16} carries {most} streams")

    def _stream(
        self, subject: Running, number: int, streams: int, events: int, *, give_up: bool = False
    ) -> Streams:
        settings = self._settings
        arguments = [
            "--url", subject.target.url, "--body", str(self._stream_body),
            "--streams", str(streams), "--events", str(events),
            "--seconds", str(settings.stream_seconds),
            "--ramp", str(64 * settings.pace_ms / 1000),
        ]  # fmt: skip
        if subject.target.api_key:
            arguments += ["--api-key", subject.target.api_key]
        if give_up:
            arguments += ["--longest-first", str(FIRST_FACTOR * settings.pace_ms / 1000)]
            arguments += ["--longest-gap", str(GAP_FACTOR * settings.pace_ms / 1000)]
        with _awake(subject):
            meter = Meter(subject, self._cores.subject)
            output = run_module("streams", arguments, self._cores.load)
            cpu = meter.read()
        load = msgspec.json.decode(output, type=StreamLoad)
        return Streams(subject.name, number, load, carried(load, settings.pace_ms), cpu)

    # -- both

    def _start_all(self, upstream: Upstream, folder: Path, stack: ExitStack) -> dict[str, Running]:
        """Start whoever can be started, each alone on the core, and put them to sleep."""
        folder.mkdir(parents=True)
        running = {}
        for subject in self._subjects:
            self._say(f"starting {subject.name} before {upstream.name}")
            try:
                started = subject.start(upstream, folder, self._cores.subject)
            except StartFailed as failure:
                self._say(f"left out: {subject.name}: {failure}")
                self._results.left_out[subject.name] = str(failure)
                continue
            stack.callback(started.stop)
            time.sleep(SETTLE_SECONDS)
            running[subject.name] = started
            if started.child is not None:
                started.child.pause()
        return running

    def _memory_of(self, running: dict[str, Running]) -> Iterator[tuple[str, float]]:
        for name, subject in running.items():
            if subject.child is not None:
                with _awake(subject):  # which waits until it is idle
                    time.sleep(SETTLE_SECONDS)
                yield name, subject.child.memory_mib()


class Meter:
    """What a subject, and others on its core, use from now on."""

    def __init__(self, subject: Running, core: int) -> None:
        self._child = subject.child
        self._core = core
        self._started = time.monotonic()
        self._own = self._child.cpu_seconds() if self._child else 0.0
        self._all = core_seconds(core)

    def read(self) -> CpuTime:
        """The time since the start; nothing of others where the subject has no process."""
        elapsed = time.monotonic() - self._started
        if self._child is None:
            return CpuTime(0.0, 0.0, elapsed)
        own = self._child.cpu_seconds() - self._own
        return CpuTime(own, max(0.0, core_seconds(self._core) - self._all - own), elapsed)


def turns(running: Mapping[str, Running], ours: str) -> Iterator[Running]:
    """Direct, ours, peer, ours, peer, ours: ours stands next to every peer."""
    beside = [running[ours]] if ours in running else []
    if DIRECT.name in running:
        yield running[DIRECT.name]
    yield from beside
    for name, subject in running.items():
        if name not in (DIRECT.name, ours):
            yield subject
            yield from beside


def carried(load: StreamLoad, pace_ms: float) -> bool:
    """Whether all streams came whole and in time."""
    asked = load.finished + load.lost + load.errors
    return (
        load.late is None
        and load.lost == 0
        and load.errors <= asked * ERROR_SHARE
        and load.gap_max_ms <= GAP_FACTOR * pace_ms
    )


def probe(subject: Running) -> int:
    """Ask for one stream and check its text; the number of its events. Raises Broken."""
    headers = {}
    if subject.target.api_key:
        headers["authorization"] = f"Bearer {subject.target.api_key}"
    answer = httpx.post(subject.target.url, json=STREAM_BODY, headers=headers, timeout=60)
    if answer.status_code != 200:
        raise Broken(f"status {answer.status_code}: {answer.text[:200]}")
    events = SseFramer().feed(answer.content)
    chunks = [msgspec.json.decode(event) for event in events if event != DONE]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    if text != expected_text(MESSAGES):
        raise Broken(f"the text differs from the upstream's: {text[:200]!r}")
    if len(events) != answer.content.count(b"\n\n"):
        raise Broken("it frames events in a way that the load generator does not count")
    return len(events)


@contextmanager
def _awake(subject: Running) -> Iterator[None]:
    if subject.child is None:
        yield
        return
    subject.child.resume()
    subject.child.wait_until_idle()
    try:
        yield
    finally:
        subject.child.pause()


def _write(path: Path, body: object) -> Path:
    path.write_bytes(msgspec.json.encode(body))
    return path
