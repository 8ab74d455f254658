"""How a server is told to stop."""

from __future__ import annotations

import asyncio
import signal


class StoppedAtOnce(Exception):
    """A second signal, `number`, ended a server that was draining."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopSignal:
    """SIGINT and SIGTERM: the first drains, the next stops at once."""

    def __init__(self) -> None:
        self._last = 0
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: int) -> None:
        self._last = number
        self._changed.set()

    async def wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def wait_again(self, drain: asyncio.Task[None]) -> int:
        """Return 0 when `drain` is done, or the number of a second signal."""
        second = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait({drain, second}, return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        drained = drain.done()
        drain.cancel()
        return 0 if drained else self._last
