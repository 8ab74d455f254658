"""A task that was cancelled below redis-py ends all the same."""

from __future__ import annotations

import asyncio


def heed_cancellation() -> None:
    """Connecting can swallow one (`asyncio.wait_for` before Python 3.12, below redis-py), and
    whoever waits for the task's end would wait for ever."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
