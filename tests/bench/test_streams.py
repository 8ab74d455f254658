import asyncio

import pytest

from prime_inference.bench.gateway.streams import Limits, StreamLoad, measure
from prime_inference.engines.mock import MockEngine
from tests.bench.conftest import Ask

EVENTS = 64 + 3  # the role, 64 tokens, the finish, [DONE]


async def watch(
    engine: MockEngine, wanted: Ask, spec: str = "pace-1ms", limits: Limits = Limits()
) -> StreamLoad:
    request = wanted(engine, model=f"mock/{spec}", stream=True)
    async with asyncio.timeout(20):
        return await measure(request, 3, 0.2, EVENTS, ramp=0.05, limits=limits)


@pytest.mark.parametrize("spec", ["pace-1ms", "pace-0ms", "huge-at-2"])
async def test_whole_streams_are_counted_however_they_are_read(wanted: Ask, spec: str):
    async with MockEngine() as engine:
        load = await watch(engine, wanted, spec)
    assert load.finished >= 3
    assert (load.lost, load.errors, load.late) == (0, 0, None)
    assert load.events == load.finished * EVENTS


async def test_a_stream_that_ends_early_is_lost(wanted: Ask):
    async with MockEngine() as engine:
        load = await watch(engine, wanted, "end-after-9.pace-1ms")
    assert load.lost >= 3
    assert (load.finished, load.errors) == (0, 0)


@pytest.mark.parametrize("spec", ["status-503", "cut-after-5.pace-1ms", "reset", "close"])
async def test_refused_and_broken_streams_are_errors(wanted: Ask, spec: str):
    async with MockEngine() as engine:
        load = await watch(engine, wanted, spec)
    assert load.errors >= 3
    assert (load.finished, load.lost) == (0, 0)


async def test_nobody_listening_is_an_error(wanted: Ask):
    async with MockEngine() as engine:
        request = wanted(engine, stream=True)
    load = await measure(request, 2, 0.1, EVENTS, ramp=0.0, limits=Limits())
    assert load.errors >= 2


@pytest.mark.parametrize(
    ("spec", "late"),
    [
        ("stall-after-3", "gap"),
        ("silence", "first event"),
        ("slow-first-10s", "first event"),
    ],
)
async def test_a_run_is_given_up_as_soon_as_a_stream_is_late(wanted: Ask, spec: str, late: str):
    async with MockEngine() as engine:
        load = await watch(engine, wanted, spec, Limits(first=0.3, gap=0.3))
    assert load.late == late


async def test_times_are_told_apart_from_the_first_event_to_gaps(wanted: Ask):
    async with MockEngine() as engine:
        load = await watch(engine, wanted, "slow-first-150ms.pace-5ms")
    assert load.ttft_p50_ms >= 150
    assert 4 <= load.gap_p50_ms < 150
