"""While nothing at all is in flight, turns that wait come earlier, all by the same amount."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import pytest

from prime_inference.bench.agents.idle_cap import IdleCap
from prime_inference.bench.agents.plan import Point
from prime_inference.engines.mock import MockEngine

from .running import measured, session, workload

CAP = 0.05
FAR = 1000.0  # seconds: no test waits for it


def clock() -> Callable[[], float]:
    began = time.monotonic()
    return lambda: time.monotonic() - began


async def test_timers_keep_their_order_and_their_spacing() -> None:
    idle = IdleCap(CAP, clock())
    came: list[str] = []

    async def turn(name: str, due: float) -> float:
        when = await idle.until(due, math.inf)
        idle.began()
        came.append(name)
        await asyncio.sleep(0)
        idle.ended()
        return when

    first, second, third = await asyncio.gather(
        turn("first", FAR), turn("second", FAR + 0.02), turn("third", FAR + 500)
    )
    assert came == ["first", "second", "third"]
    assert second - first == pytest.approx(0.02)
    assert third < FAR
    assert idle.skipped == pytest.approx(FAR + 500 - third)


async def test_nothing_is_brought_forward_while_a_request_is_in_flight() -> None:
    idle = IdleCap(CAP, clock())
    idle.began()
    turn = asyncio.create_task(idle.until(FAR, math.inf))
    await asyncio.sleep(3 * CAP)
    assert not turn.done()
    assert idle.skipped == 0
    idle.ended()
    assert await turn < FAR


async def test_what_is_not_brought_forward_ends_with_the_point() -> None:
    idle = IdleCap(CAP, clock())
    idle.began()
    assert await idle.until(FAR, 0.1) == FAR


async def test_without_a_cap_a_turn_beyond_the_end_is_not_waited_for() -> None:
    idle = IdleCap(None, clock())
    assert await idle.until(FAR, FAR - 1) == FAR
    assert await idle.until(0.0, FAR) == 0.0


async def test_a_lone_session_does_not_leave_the_server_idle() -> None:
    async with MockEngine() as engine:
        records, run = await measured(
            engine, workload(session(delay=FAR)), Point(1, 0.0, 1), seconds=1.5,
            system_idle_cap=CAP,
        )  # fmt: skip
    first = [record for record in records if record.play == 0]
    assert [record.turn for record in first][:3] == [0, 1, 2]
    assert run.skipped > 2 * (FAR - 2)
    for record in first[1:3]:
        assert record.due == record.intended < 1.5
        assert 0 <= record.wait < 1.5  # what is left of the delay
