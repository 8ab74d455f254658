"""Lines of an engine until Dynamo cancels, one way or the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from prime_inference.engines.dynamo.worker import _until


class Lines:
    """One line, and then none for as long as anybody waits."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.left = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[str]:
        yield "first"
        self.waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()


async def read(lines: Lines, cancelled: asyncio.Future[None]) -> list[str]:
    return [line async for line in _until(aiter(lines), cancelled)]


async def test_lines_end_when_dynamo_cancels():
    lines, cancelled = Lines(), asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(read(lines, cancelled))
    await lines.waits.wait()
    cancelled.set_result(None)
    assert await reading == ["first"]
    assert lines.left.is_set()


async def test_nobody_waits_for_a_line_once_the_handler_is_cancelled():
    lines, cancelled = Lines(), asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(read(lines, cancelled))
    await lines.waits.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    async with asyncio.timeout(5):
        await lines.left.wait()
