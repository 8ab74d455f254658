"""A load generator of many streams at once, which notices lost frames and stalls.

    python -m prime_inference.bench.gateway.streams --url URL --body FILE --streams 100 --events 67

Keeps so many streams going, each begun anew when it ends, and prints one JSON object
(`StreamLoad`). It counts events and looks at the clock, and parses nothing else: generator
and upstream share a core, and this is to be the lesser load on it. With limits given, it
ends as soon as one is passed: a subject that chokes would otherwise take minutes to say so.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from array import array
from pathlib import Path

import msgspec
import uvloop

from prime_inference.bench.gateway.connection import Asking, Wanted, percentile, prepare

STREAM_SECONDS = 60.0  # an answer of 64 tokens at 20 ms takes 1.3 s
WATCH_SECONDS = 0.1  # between looks at who waits too long
REFUSED_SECONDS = 0.1  # before a stream that failed is begun anew
LAST_CHUNK = b"0\r\n\r\n"


class StreamLoad(msgspec.Struct, frozen=True):
    """What was seen: `lost` streams lacked events, `errors` were refused or broken off.

    Times in milliseconds: to the first event, and between reads that brought events.
    `late` says which limit was passed, if the run was ended for it.
    """

    streams: int
    finished: int
    lost: int
    errors: int
    events: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    late: str | None = None


class Limits(msgspec.Struct, frozen=True):
    """Longest waits, in seconds, before a run is given up."""

    first: float = STREAM_SECONDS
    gap: float = STREAM_SECONDS


class Tally:
    """Adds up what all connections see; times in seconds."""

    def __init__(self) -> None:
        self.first = array("d")
        self.gaps = array("d")
        self.finished = 0
        self.lost = 0
        self.errors = 0
        self.events = 0
        self.late: str | None = None
        self.readers: set[StreamReader] = set()

    def summary(self, streams: int) -> StreamLoad:
        """The numbers of the whole run."""
        first, gaps = sorted(self.first), sorted(self.gaps)
        return StreamLoad(
            streams, self.finished, self.lost, self.errors, self.events,
            ttft_p50_ms=1000 * percentile(first, 0.5),
            ttft_p99_ms=1000 * percentile(first, 0.99),
            gap_p50_ms=1000 * percentile(gaps, 0.5),
            gap_p99_ms=1000 * percentile(gaps, 0.99),
            gap_max_ms=1000 * (gaps[-1] if gaps else 0.0),
            late=self.late,
        )  # fmt: skip


class StreamReader(Asking):
    """Counts the events of one stream at a time; `complete` once its body has ended.

    An event ends in two line feeds that come in one chunk of the HTTP body, as every
    server writes them; one that does not would be seen to lose every stream.
    """

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally
        self.begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._tally.readers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.readers.discard(self)
        super().connection_lost(exc)

    def waited(self, now: float) -> float:
        """Seconds since the last event, or since the request."""
        return 0.0 if self.complete else now - self._at

    def begin(self) -> None:
        """Be ready for the next stream."""
        self.events = 0
        self.complete = False
        self._last_byte = 0
        self._tail = b""
        self._at = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        events = data.count(b"\n\n") + (self._last_byte == 10 and data[0] == 10)
        self._last_byte = data[-1]
        if events:
            now = time.perf_counter()
            (self._tally.gaps if self.events else self._tally.first).append(now - self._at)
            self._at = now
            self.events += events
        elif not self.events and not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self.transport.abort()
            return
        self._tail = data[-5:] if len(data) >= 5 else (self._tail + data)[-5:]
        if self._tail == LAST_CHUNK and self.events:
            self.complete = True
            self.finish()


async def measure(
    wanted: Wanted, streams: int, seconds: float, events: int, ramp: float, limits: Limits
) -> StreamLoad:
    """Keep `streams` going for `seconds`, begun evenly over the `ramp` seconds before."""
    tally = Tally()
    until = time.perf_counter() + ramp + seconds
    workers = [
        asyncio.create_task(_work(wanted, tally, ramp * n / streams, until, events))
        for n in range(streams)
    ]
    pending = set(workers)
    while pending and tally.late is None:
        _, pending = await asyncio.wait(pending, timeout=WATCH_SECONDS)
        tally.late = _late(tally, limits)
    for worker in pending:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=tally.late is not None)
    return tally.summary(streams)


def _late(tally: Tally, limits: Limits) -> str | None:
    """Which limit has been passed by a stream that is under way or has ended."""
    now = time.perf_counter()
    if any(r.events and r.waited(now) > limits.gap for r in tally.readers):
        return "gap"
    if any(not r.events and r.waited(now) > limits.first for r in tally.readers):
        return "first event"
    return None


async def _work(wanted: Wanted, tally: Tally, delay: float, until: float, events: int) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(delay)
    reader: StreamReader | None = None
    while time.perf_counter() < until:
        if reader is None or reader.transport is None:
            try:
                _, reader = await loop.create_connection(
                    lambda: StreamReader(tally), wanted.host, wanted.port
                )
            except OSError:  # refused or reset: what an overloaded subject does
                tally.errors += 1
                await asyncio.sleep(REFUSED_SECONDS)
                continue
        reader.begin()
        await reader.ask(wanted, STREAM_SECONDS)
        tally.events += reader.events
        if not reader.complete:
            tally.errors += 1
            await asyncio.sleep(REFUSED_SECONDS)
        elif reader.events != events:
            tally.lost += 1
        else:
            tally.finished += 1
    if reader is not None and reader.transport is not None:
        reader.transport.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--body", required=True, type=Path)
    parser.add_argument("--api-key")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--ramp", type=float, default=1.3)
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--longest-first", type=float, default=STREAM_SECONDS)
    parser.add_argument("--longest-gap", type=float, default=STREAM_SECONDS)
    given = parser.parse_args()
    wanted = prepare(given.url, given.body, given.api_key)
    limits = Limits(given.longest_first, given.longest_gap)
    load = uvloop.run(
        measure(wanted, given.streams, given.seconds, given.events, given.ramp, limits)
    )
    print(msgspec.json.encode(load).decode())


if __name__ == "__main__":
    main()
