"""A load generator of whole answers, for machines without wrk, and for the soak.

    python -m prime_inference.bench.gateway.closed_loop --url URL --body FILE --connections 8

Prints one JSON object (`load.Load`).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import httptools
import msgspec
import uvloop

from prime_inference.bench.gateway.connection import Asking, Wanted, percentile, prepare
from prime_inference.bench.gateway.load import Load

ANSWER_SECONDS = 60.0  # the same patience as wrk gets


class _Answer(Asking):
    """Reads one whole answer at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 0
        self._parser: Any = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.status = 0
            self.transport.abort()

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.finish()


async def measure(
    wanted: Wanted, connections: int, seconds: float, per_second: float | None = None
) -> Load:
    """Keep `connections` busy for `seconds`; with `per_second`, ask only that often in all."""
    latencies: list[float] = []
    started = time.perf_counter()
    gap = connections / per_second if per_second else 0.0
    workers = [
        _work(wanted, started + seconds, gap, gap * n / connections, latencies)
        for n in range(connections)
    ]
    errors = sum(await asyncio.gather(*workers))
    elapsed = time.perf_counter() - started
    latencies.sort()
    p50, p90, p99 = (1000 * percentile(latencies, share) for share in (0.5, 0.9, 0.99))
    return Load(len(latencies), elapsed, p50, p90, p99, errors)


async def _work(
    wanted: Wanted, until: float, gap: float, delay: float, latencies: list[float]
) -> int:
    loop = asyncio.get_running_loop()
    errors = 0
    answer: _Answer | None = None
    due = time.perf_counter() + delay
    while True:
        if (wait := due - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        now = time.perf_counter()
        if now >= until:
            break
        due = max(due + gap, now)
        if answer is None or answer.transport is None:
            _, answer = await loop.create_connection(_Answer, wanted.host, wanted.port)
            now = time.perf_counter()
        answer.status = 0
        await answer.ask(wanted, ANSWER_SECONDS)
        if answer.status == 200:
            latencies.append(time.perf_counter() - now)
        else:
            errors += 1
    if answer is not None and answer.transport is not None:
        answer.transport.close()
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--body", required=True, type=Path)
    parser.add_argument("--api-key")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--per-second", type=float)
    options = parser.parse_args()
    wanted = prepare(options.url, options.body, options.api_key)
    load = uvloop.run(measure(wanted, options.connections, options.seconds, options.per_second))
    print(msgspec.json.encode(load).decode())


if __name__ == "__main__":
    main()
