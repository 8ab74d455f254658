"""The client side of a load generator: one connection, one fixed request, over and over."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec


class Wanted(msgspec.Struct, frozen=True):
    """A request as bytes, and where it goes."""

    host: str
    port: int
    message: bytes


def prepare(url: str, body: Path, api_key: str | None) -> Wanted:
    """Read the body and make the whole request of it."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    content = body.read_bytes()
    authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    head = (
        f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        f"content-type: application/json\r\n{authorization}"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return Wanted(parts.hostname, parts.port or 80, head.encode() + content)


class Asking(asyncio.Protocol):
    """One connection. A subclass reads the answer in `data_received`; see `ask`.

    The answer is awaited by one future, so that a worker is a plain loop.
    """

    def __init__(self) -> None:
        self.transport: Any = None
        self._done: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.finish()

    async def ask(self, wanted: Wanted, seconds: float) -> None:
        """Send the request, and return when its answer ended, well or not.

        After `seconds` the connection is closed and the answer counts as broken off.
        """
        self._done = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._give_up)
        self.transport.write(wanted.message)
        await self._done
        timer.cancel()

    def _give_up(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def finish(self) -> None:
        """To be called when an answer is complete."""
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


def percentile(ordered: list[float], share: float) -> float:
    """The value below which `share` (0 to 1) of a sorted list lies; 0 for an empty one."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
