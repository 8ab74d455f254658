"""Clocks looked over together: each is called once, when it is due, whatever others do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from prime_inference.domain.errors import UpstreamFailure, UpstreamTimeout
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines, Watchdog

from .running import eventually

TICK = Deadlines.TICK_SECONDS


async def test_a_watchdog_calls_back_once_when_it_is_due():
    loop = asyncio.get_running_loop()
    deadlines, calls, began = Deadlines(), [], loop.time()
    Watchdog(deadlines, 0.05, lambda: calls.append(loop.time() - began))
    await asyncio.sleep(3 * TICK)
    (waited,) = calls
    assert waited >= 0.05


async def test_a_watchdog_that_is_touched_or_cancelled_does_not_call():
    deadlines, calls = Deadlines(), []
    touched = Watchdog(deadlines, 1.5 * TICK, lambda: calls.append("touched"))
    Watchdog(deadlines, 0.01, lambda: calls.append("cancelled")).cancel()
    for _ in range(4):
        await asyncio.sleep(TICK)
        touched.touch()
    assert calls == []
    touched.cancel()


async def test_a_watchdog_may_be_started_again_after_it_has_called():
    deadlines, calls = Deadlines(), []
    watchdog = Watchdog(deadlines, 0.01, lambda: calls.append(1))
    await eventually(lambda: calls == [1])
    watchdog.restart(0.01)
    await eventually(lambda: calls == [1, 1])


class SetByHand(Deadlines):
    """A clock that goes on when the test says so; nothing is due by the real one."""

    def __init__(self) -> None:
        super().__init__()
        self.time = self._loop.time() + 1e6

    def now(self) -> float:
        return self.time


async def test_content_after_a_finish_reason_gives_the_tail_its_whole_time_again():
    deadlines = SetByHand()
    began = deadlines.time
    clocks = AttemptClocks(deadlines, ClockLimits(idle=60, tail=2), streamed=True)
    clocks.finished()
    assert clocks.at == began + 2
    for _ in range(3):
        deadlines.time += 1.5
        clocks.progress()
        assert clocks.at == deadlines.time + 60
        clocks.finished()
        assert clocks.at == deadlines.time + 2
    clocks.stop()


async def test_what_comes_after_the_finish_reason_without_content_does_not_renew_the_tail():
    deadlines = SetByHand()
    began = deadlines.time
    clocks = AttemptClocks(deadlines, ClockLimits(tail=2), streamed=True)
    for _ in range(3):
        clocks.finished()
        deadlines.time += 1.5
    assert clocks.at == began + 2
    clocks.stop()


async def test_a_callback_may_cancel_another_that_is_due_too():
    deadlines, calls = Deadlines(), []
    watchdogs: list[Watchdog] = []

    def call() -> None:
        calls.append(1)
        for watchdog in watchdogs:
            watchdog.cancel()

    watchdogs += [Watchdog(deadlines, 0.01, call) for _ in range(5)]
    await asyncio.sleep(3 * TICK)
    assert calls == [1]


async def test_a_callback_that_fails_stops_no_other_clock(caplog: pytest.LogCaptureFixture):
    deadlines = Deadlines()
    calls: list[int] = []
    Watchdog(deadlines, 0.01, lambda: calls.remove(2))  # raises
    Watchdog(deadlines, 2 * TICK, lambda: calls.append(1))
    with caplog.at_level(logging.ERROR):
        await eventually(lambda: calls == [1])
    assert "a clock failed" in caplog.text


class Exchange:
    """Notes the error that ends it."""

    def __init__(self) -> None:
        self.error: UpstreamFailure | None = None

    def fail(self, error: UpstreamFailure) -> None:
        self.error = error


@pytest.mark.parametrize("clock", ["first_token", "total"])
async def test_a_clock_that_runs_out_while_connecting_ends_the_exchange_as_it_begins(clock: str):
    limits = ClockLimits(**{clock: 0.01})
    clocks = AttemptClocks(Deadlines(), limits, streamed=True)
    await asyncio.sleep(2.5 * TICK)  # the connection takes its time
    exchange: Any = Exchange()
    clocks.watch(exchange)
    assert isinstance(exchange.error, UpstreamTimeout)
    assert exchange.error.clock == clock
    clocks.stop()


async def test_the_clock_of_an_attempt_that_was_stopped_ends_nothing():
    clocks = AttemptClocks(Deadlines(), ClockLimits(first_token=0.01), streamed=True)
    exchange: Any = Exchange()
    clocks.watch(exchange)
    clocks.stop()
    await asyncio.sleep(2.5 * TICK)
    assert exchange.error is None


async def test_a_process_that_stood_still_holds_nobody_to_account():
    deadlines = Deadlines()
    called: list[str] = []
    dog = Watchdog(deadlines, 60, lambda: called.append("late"))
    before = dog.at
    deadlines._due -= 100  # as if the tick had come 100 s too late
    deadlines._tick()
    assert not called
    assert 99 < dog.at - before < 101
    dog.cancel()
