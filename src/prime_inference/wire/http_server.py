"""HTTP/1.1 server on the event loop's own transports: httptools in front, no framework.

A general server costs more per request than all of the gateway's own work
(docs/decisions/0002-http-halves.md has the measurements). This one does what the
gateway needs: keep-alive, pipelining in order, chunked bodies both ways,
`Expect: 100-continue`, size and time limits, backpressure, cancellation of the handler
when the client leaves, and draining.
"""

from __future__ import annotations

import asyncio
import email.utils
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prime_inference.domain.errors import ApiError
from prime_inference.wire.http import Handler, HeadCheck, Headers
from prime_inference.wire.http_connection import Connection

RenderError = Callable[[ApiError], tuple[int, Headers, bytes]]
"""Turns an error into the status, headers and body of an answer."""

BACKLOG = 2048  # a thousand agents may connect at once; the kernel caps it at somaxconn
SWEEP_SECONDS = 1.0  # how late a time limit may be noticed; a timer per request costs more
STOP_SECONDS = 3.0  # for the last words of answers that are broken off, and for their handlers


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may make the server hold. Sizes in bytes, times in seconds."""

    body_bytes: int = 20 * 1024 * 1024  # a 1M-token prompt is about 5 MB of JSON
    header_bytes: int = 32 * 1024  # nginx's default total for large headers
    header_count: int = 100  # Apache's and h2o's default
    url_bytes: int = 8 * 1024  # nginx's default for one line
    pipelined_requests: int = 32  # hardly any client pipelines; benchmarks do, by 16
    header_seconds: float = 20.0  # a slow-loris client may hold a socket this long
    body_seconds: float = 120.0  # 20 MB over a 1.3 Mbit/s uplink
    idle_seconds: float = 75.0  # above the 60 s that load balancers keep idle sockets
    write_seconds: float = 60.0  # nginx's send_timeout: a client that stops reading is cut off
    linger_seconds: float = 30.0  # nginx's lingering_time: reading on so that a refusal is seen
    write_buffer_bytes: int = 256 * 1024  # above this the client is congested


class HttpServer:
    """Listens on one address and serves requests with `handler`.

    `check_head` may raise an `ApiError` to refuse a request before its body is read.
    """

    def __init__(
        self,
        handler: Handler,
        render_error: RenderError,
        *,
        check_head: HeadCheck | None = None,
        limits: ServerLimits = ServerLimits(),
    ) -> None:
        self.handler = handler
        self.render_error = render_error
        self.check_head = check_head
        self.limits = limits
        self.draining = False
        self.stopping = False  # whoever is still served is told so
        self.connections: set[Connection] = set()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by `start`
        self._listener: asyncio.Server | None = None
        self._socket: socket.socket | None = None  # the listener's
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._date = (0, b"")

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. Raises OSError when it is taken."""
        self.loop = asyncio.get_running_loop()
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = listener
        self._listener = await self.loop.create_server(
            lambda: Connection(self), sock=listener, backlog=BACKLOG
        )
        self._sweep()
        bound: tuple[Any, ...] = listener.getsockname()
        return str(bound[0]), int(bound[1])

    def date_line(self) -> bytes:
        """The `Date` header, made once a second."""
        now = int(time.time())
        if now != self._date[0]:
            self._date = (now, f"date: {email.utils.formatdate(now, usegmt=True)}\r\n".encode())
        return self._date[1]

    @property
    def in_flight(self) -> int:
        """Requests being served now."""
        return sum(connection.task is not None for connection in self.connections)

    def forget(self, connection: Connection) -> None:
        """A connection and what it served have ended."""
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    async def drain(self, seconds: float) -> None:
        """Stop listening, let requests in flight finish for at most `seconds`, then close.

        Who has a connection, be it one that only the kernel has taken so far, may still send
        a first request.
        """
        self.draining = True
        waiting = self._accept_what_waits()
        self._stop_listening()
        for accepted in waiting:
            await self.loop.connect_accepted_socket(lambda: Connection(self), accepted)
        for connection in list(self.connections):
            connection.close_when_idle()
        await self._empty(seconds)
        await self.close()

    async def close(self) -> None:
        """Stop at once: handlers are cancelled, and end their answers with an error.

        Who does not read it within STOP_SECONDS is cut off.
        """
        self.stopping = True
        self._stop_listening()
        for connection in list(self.connections):
            connection.stop()
        await self._empty(STOP_SECONDS)
        for connection in list(self.connections):
            connection.cut()
        await self._empty(STOP_SECONDS if self.connections else 0)
        for connection in self.connections:  # answered, but at work after it
            if connection.task is not None:
                connection.task.cancel()
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _accept_what_waits(self) -> list[socket.socket]:
        """Connections that the kernel has taken; to close the listener would reset them."""
        accepted: list[socket.socket] = []
        while self._listener is not None and self._socket is not None:
            try:
                accepted.append(self._socket.accept()[0])
            except OSError:  # none is left, or there are no more file descriptors
                break
        for each in accepted:
            each.setblocking(False)
        return accepted

    def _stop_listening(self) -> None:
        self.draining = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _empty(self, seconds: float) -> None:
        """Wait until the last connection has ended, for at most `seconds`."""
        if not self.connections:
            return
        self._emptied.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), seconds)

    def _sweep(self) -> None:
        now = self.loop.time()
        for connection in [c for c in self.connections if c.deadline <= now]:
            connection.expire()
        limits = self.limits
        shortest = min(
            limits.header_seconds, limits.body_seconds, limits.idle_seconds,
            limits.write_seconds, limits.linger_seconds,
        )  # fmt: skip
        self._sweeper = self.loop.call_later(min(SWEEP_SECONDS, shortest / 4), self._sweep)
