"""Ten minutes of moderate load on our gateway alone: does its memory grow?"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from prime_inference.bench.gateway.campaign import probe
from prime_inference.bench.gateway.load import Load, LoadFailed
from prime_inference.bench.gateway.machine import Machine, choose_cores, describe, pinned
from prime_inference.bench.gateway.streams import StreamLoad
from prime_inference.bench.gateway.subjects import OURS, Running
from prime_inference.bench.gateway.upstream import STREAM_BODY, WHOLE_BODY, start_mock

STREAMS = 100  # a fifth of what one core has to carry
PER_SECOND = 500.0  # whole answers beside them: below a tenth of what it can do
CONNECTIONS = 16
SAMPLE_SECONDS = 2.0
WARM_SHARE = 0.5  # of the time; caches and records that are bounded by number fill up in it
LATE_SHARE = 0.75  # what grows without bound still grows in the last quarter
PACE_MS = 20.0


class Soak(msgspec.Struct):
    """Memory over time, and what was answered meanwhile.

    Growth is the slope of the line through the samples: after the warm-up, and in the last
    quarter of the time.
    """

    made_at: str
    machine: Machine
    minutes: float
    idle_mib: float
    warm_mib: float
    end_mib: float
    growth_mib_per_minute: float
    late_growth_mib_per_minute: float
    whole: Load
    streams: StreamLoad
    samples_mib: list[float]


def run(minutes: float, say: Callable[[str], None]) -> Soak:
    """Load the gateway for so long. Raises StartFailed, LoadFailed."""
    cores = choose_cores()
    with tempfile.TemporaryDirectory(prefix="bench-soak-") as name:
        folder = Path(name)
        mock = start_mock(folder, cores.load, pace_ms=PACE_MS)
        try:
            gateway = OURS.start(mock, folder, cores.subject)
            try:
                return _measure(gateway, folder, cores.load, minutes, say)
            finally:
                gateway.stop()
        finally:
            mock.child.stop()


def _measure(
    gateway: Running, folder: Path, core: int, minutes: float, say: Callable[[str], None]
) -> Soak:
    assert gateway.child is not None
    time.sleep(SAMPLE_SECONDS)
    idle = gateway.child.memory_mib()
    seconds = minutes * 60
    generators = _generators(gateway, folder, core, seconds)
    samples = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(SAMPLE_SECONDS)
        samples.append(gateway.child.memory_mib())
        if len(samples) % 15 == 1:
            say(f"{len(samples) * SAMPLE_SECONDS:.0f} s: {samples[-1]:.1f} MiB")
    streams, whole = (_finish(generator) for generator in generators)
    warm = samples[int(len(samples) * WARM_SHARE) :]
    late = samples[int(len(samples) * LATE_SHARE) :]
    return Soak(
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=describe(),
        minutes=minutes,
        idle_mib=idle,
        warm_mib=warm[0],
        end_mib=warm[-1],
        growth_mib_per_minute=slope(warm) * 60 / SAMPLE_SECONDS,
        late_growth_mib_per_minute=slope(late) * 60 / SAMPLE_SECONDS,
        whole=msgspec.json.decode(whole, type=Load),
        streams=msgspec.json.decode(streams, type=StreamLoad),
        samples_mib=[round(sample, 2) for sample in samples],
    )


def _generators(
    gateway: Running, folder: Path, core: int, seconds: float
) -> list[subprocess.Popen[bytes]]:
    """Streams and whole answers side by side."""
    whole, stream = folder / "whole.json", folder / "stream.json"
    whole.write_bytes(msgspec.json.encode(WHOLE_BODY))
    stream.write_bytes(msgspec.json.encode(STREAM_BODY))
    events = str(probe(gateway))
    return [
        _start("streams", gateway, core, ["--body", str(stream), "--streams", str(STREAMS),
               "--events", events, "--seconds", str(seconds)]),
        _start("closed_loop", gateway, core, ["--body", str(whole), "--connections",
               str(CONNECTIONS), "--seconds", str(seconds), "--per-second", str(PER_SECOND)]),
    ]  # fmt: skip


def _start(
    module: str, gateway: Running, core: int, arguments: list[str]
) -> subprocess.Popen[bytes]:
    key = ["--api-key", gateway.target.api_key] if gateway.target.api_key else []
    command = [sys.executable, "-m", f"{__package__}.{module}", "--url", gateway.target.url]
    with pinned(core):
        return subprocess.Popen([*command, *key, *arguments], stdout=subprocess.PIPE)


def _finish(generator: subprocess.Popen[bytes]) -> bytes:
    output, _ = generator.communicate()
    if generator.returncode:
        raise LoadFailed(f"a generator ended with status {generator.returncode}")
    return output


def slope(values: Sequence[float]) -> float:
    """Of the straight line through equally spaced values, per step (least squares)."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), values).slope
