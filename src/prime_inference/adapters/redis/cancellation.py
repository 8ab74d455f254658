"""A task that was cancelled below redis-py ends all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def bounded(seconds: float) -> AsyncIterator[None]:
    """Ends the block after `seconds` with TimeoutError; and the task, if it was cancelled in it,
    whatever the block made of that."""
    try:
        async with asyncio.timeout(seconds):
            yield
    finally:
        heed_cancellation()


def heed_cancellation() -> None:
    """Connecting can swallow one (`asyncio.wait_for` before Python 3.12, below redis-py), and
    whoever waits for the task's end would wait for ever."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
