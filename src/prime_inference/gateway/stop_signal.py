"""How a server is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

log = logging.getLogger(__name__)


class StoppedAtOnce(Exception):
    """A second signal, `number`, ended a server that was draining."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class StopSignal:
    """SIGINT and SIGTERM: the first drains, the next stops at once.

    SIGHUP calls `reload`, as with other servers; where a terminal is our standard input it is
    that terminal's end, and drains. SIGUSR1 and SIGUSR2 mean nothing, and kill nobody.
    """

    def __init__(self, reload: Callable[[], None]) -> None:
        self._last = 0
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received, number)
        if _is_terminal(0):
            loop.add_signal_handler(signal.SIGHUP, self._received, signal.SIGHUP)
        else:
            loop.add_signal_handler(signal.SIGHUP, reload)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, _ignored, number)

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


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:  # it is closed
        return False


def _ignored(number: int) -> None:
    log.info("%s means nothing here", signal.Signals(number).name)
