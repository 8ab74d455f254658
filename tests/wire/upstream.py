"""An upstream that does to the bytes what a test tells it to."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress

from prime_inference.wire.http_client import HttpPool, Origin
from tests.wire.peer import PATIENCE, Peer, eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s


class Link(Peer):
    """The upstream's end of one connection."""

    index: int
    heads: list[bytes]  # of all the upstream's requests

    async def request(self) -> bytes:
        """Read one request; returns its body."""
        async with asyncio.timeout(PATIENCE):
            head = await self.reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            (length,) = (
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            return await self.reader.readexactly(length)

    async def end(self) -> None:
        """Wait until the client has closed this connection."""
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.abort()


Script = Callable[[Link], Awaitable[None]]


class Upstream:
    """Runs `script` for every connection and closes it when the script returns."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.links: list[Link] = []
        self.heads: list[bytes] = []  # of all requests, in order
        self.open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    @classmethod
    async def start(cls, script: Script) -> Upstream:
        upstream = cls(script)
        upstream._server = await asyncio.start_server(upstream._accept, "127.0.0.1", 0)
        return upstream

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    @property
    def base_url(self) -> str:
        return "http://{}:{}/v1".format(*self.address)

    def pool(self, **options) -> HttpPool:
        return HttpPool(Origin.parse(self.base_url), **options)

    async def deserted(self) -> None:
        """Wait until no connection is open any more, accepted ones that nobody used included."""
        await asyncio.sleep(0.01)
        await eventually(lambda: self.open == 0)

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        link.index = len(self.links)
        link.heads = self.heads
        self.links.append(link)
        task = asyncio.create_task(self._run(link))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, link: Link) -> None:
        self.open += 1
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.script(link)
        finally:
            self.open -= 1
            link.writer.close()


StartUpstream = Callable[[Script], Awaitable[Upstream]]


async def serve_forever(link: Link) -> None:
    """Answers `hello` to every request."""
    while True:
        await link.request()
        await link.send(OK)
