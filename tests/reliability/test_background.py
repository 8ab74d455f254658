"""What runs beside the requests is started again, whatever ends it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from prime_inference.domain.backoff import HEALTHY_SECONDS, Backoff
from prime_inference.reliability.background import CAUSE_CHARACTERS, Background, end


class Soon(Backoff):
    """No pause; `asked` are the times that the runs before took."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def pause(self, ran_seconds: float) -> float:
        self.asked.append(ran_seconds)
        return 0.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_task_that_fails_is_started_again_and_counted(caplog: pytest.LogCaptureFixture):
    background = Background(Clock(), Soon)
    runs = 0
    works = asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs <= 3:
            raise RecursionError(f"run {runs}\nof a parser")
        works.set()
        await asyncio.Event().wait()

    task = background.start("parser", run)
    assert background.failures == {"parser": 0}
    await asyncio.wait_for(works.wait(), 10)
    await end([task])
    assert (runs, background.failures) == (4, {"parser": 3})
    told = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert [record.getMessage() for record in told] == ["parser failed; it is started again"] * 3
    assert all(record.exc_info is not None for record in told)
    assert background.failing == {"parser": "RecursionError: run 3 of a parser"}


async def test_a_task_is_well_again_when_it_has_run_for_a_minute():
    clock = Clock()
    background = Background(clock, Soon)
    begun = asyncio.Event()

    async def run() -> None:
        if not background.failures["once"]:
            raise ValueError("x" * 1000)
        begun.set()
        await asyncio.Event().wait()

    task = background.start("once", run)
    await asyncio.wait_for(begun.wait(), 10)
    clock.now = HEALTHY_SECONDS - 1
    assert [len(cause) for cause in background.failing.values()] == [CAUSE_CHARACTERS]
    clock.now = HEALTHY_SECONDS
    assert background.failing == {}
    await end([task])


async def test_a_group_is_named_by_its_first_cause_and_a_stray_cancellation_is_a_failure():
    background = Background(Clock(), Soon)
    enough = asyncio.Event()

    async def fails() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(3600))
            raise ValueError("nan")

    async def awaits_what_was_cancelled() -> None:
        if all(background.failures[name] > 2 for name in ("group", "stray")):
            enough.set()
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    tasks = [background.start("group", fails), background.start("stray", awaits_what_was_cancelled)]
    await asyncio.wait_for(enough.wait(), 10)
    assert background.failing == {"group": "ValueError: nan", "stray": "CancelledError: "}
    await end(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_a_task_that_has_nothing_left_to_do_ends():
    background = Background(Clock(), Soon)

    async def run() -> None:
        await asyncio.sleep(0)

    await asyncio.wait_for(background.start("short", run), 10)
    assert (background.failing, background.failures) == ({}, {"short": 0})


async def test_the_pause_goes_by_how_long_the_run_was():
    clock, backoff = Clock(), Soon()
    background = Background(clock, lambda: backoff)
    enough = asyncio.Event()

    async def run() -> None:
        if background.failures["disk"] == 3:
            enough.set()
        clock.now += 5
        raise OSError("no")

    task = background.start("disk", run)
    await asyncio.wait_for(enough.wait(), 10)
    await end([task])
    assert set(backoff.asked) == {5.0}
