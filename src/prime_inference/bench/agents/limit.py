"""The generator's own limit: how many streams one process follows, and how late it is.

Every event of the metronome carries the time at which it was written; both processes read
the machine's monotonic clock, so the difference is what transport and generator took.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import sys

import msgspec

from prime_inference.bench.agents.http_stream import Address, Exchange, StreamClient, clock
from prime_inference.bench.agents.lag import LagProbe
from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.point import rare_collections
from prime_inference.bench.agents.sender import PATH

SENT = re.compile(rb'"sent":(\d+\.\d+)')
RAMP = 2.0  # seconds over which streams start; a session's starts are spread as well


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; `receive_*` is from the server's write to the generator's time stamp.

    `tokens_per_second` is over the time in which all streams ran; `core_share` the CPU time
    of this process over that.
    """

    streams: int
    tokens_per_stream: float
    tokens_per_second: float
    complete: int
    receive_p50: float
    receive_p99: float
    receive_max: float
    loop_p99: float
    core_share: float
    load_average: tuple[float, float, float]


async def measured_limit(streams: int, rate: float, seconds: float) -> Limit:
    """`measure_limit` against a metronome in a process of its own."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prime_inference.bench.agents.metronome", str(1 / rate),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        base_url = (await child.stdout.readline()).decode().strip()
        return await measure_limit(base_url, streams, rate, seconds)
    finally:
        child.terminate()
        await child.wait()


async def measure_limit(base_url: str, streams: int, rate: float, seconds: float) -> Limit:
    """Follow `streams` streams of `rate` tokens a second for `seconds` after the ramp."""
    client = StreamClient(Address.parse(base_url))
    tokens = round((seconds + 2 * RAMP) * rate)
    body = msgspec.json.encode({"model": "m", "messages": [], "max_tokens": tokens})

    async def stream(n: int) -> Exchange:
        await asyncio.sleep(RAMP * n / streams)
        return await client.post(PATH, body, seconds=seconds * 4 + 60)

    with rare_collections():
        async with LagProbe() as probe, asyncio.TaskGroup() as group:
            tasks = [group.create_task(stream(n)) for n in range(streams)]
            await asyncio.sleep(RAMP * 1.5)
            used, since = _cpu(), clock()
            probe.samples.clear()
            await asyncio.sleep(seconds)
            until, share = clock(), (_cpu() - used) / (clock() - since)
            samples = list(probe.samples)
    client.close()
    exchanges = [task.result() for task in tasks]
    delays = _delays(exchanges, since, until)
    return Limit(
        streams=streams,
        tokens_per_stream=rate,
        tokens_per_second=len(delays) / (until - since),
        complete=sum(e.failure is None and e.status == 200 for e in exchanges),
        receive_p50=percentile(delays, 50),
        receive_p99=percentile(delays, 99),
        receive_max=max(delays),
        loop_p99=percentile(samples, 99),
        core_share=share,
        load_average=os.getloadavg(),
    )


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _delays(exchanges: list[Exchange], since: float, until: float) -> list[float]:
    """Of every event that was stamped inside the window."""
    return [
        time - float(sent)
        for exchange in exchanges
        for time, body in zip(exchange.times, exchange.bodies, strict=True)
        if since <= time < until
        for sent in SENT.findall(body)
    ]
