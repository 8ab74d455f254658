"""Pooled HTTP/1.1 client for one upstream origin, on httptools.

A general client is the most expensive part of a gateway in Python
(docs/decisions/0002-http-halves.md). This one keeps one parser per connection, builds no
header objects, and hands body bytes over as they come, with backpressure.

Clocks belong to the caller: `Response.fail` ends a wait from outside with the error given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

from prime_inference.domain.errors import (
    UpstreamCut,
    UpstreamFailure,
    UpstreamMalformed,
    UpstreamTimeout,
    UpstreamUnreachable,
)

LINGER_SECONDS = 1.0  # an engine's end of chunked body follows its last event at once
READ_AHEAD_BYTES = 256 * 1024  # buffered for a slow consumer before the socket is paused


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme-less address of an upstream and the path its API lives under."""

    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, base_url: str) -> Origin:
        """Split `http://host:port/prefix`. Raises ValueError for anything else."""
        parts = urlsplit(base_url)
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"not an http://host:port/path base URL: {base_url!r}")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Response:
    """The answer of one exchange; `status` is 0 until the head has arrived."""

    __slots__ = (
        "_buffered", "_chunks", "_connection", "_error", "_paused", "_waiter", "complete",
        "headers", "status",
    )  # fmt: skip

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamFailure | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def header(self, name: bytes) -> bytes | None:
        """The first header field of that (lower-case) name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None

    async def head(self) -> None:
        """Wait for the status line and headers. Raises UpstreamFailure."""
        while not self.status and self._error is None:
            await self._wait()
        if not self.status and self._error is not None:
            raise self._error

    async def chunk(self) -> bytes:
        """The next body bytes; empty when the answer is complete. Raises UpstreamFailure."""
        while True:
            if self._chunks:
                data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                self._buffered = 0
                if self._paused:
                    self._paused = False
                    self._connection.resume()
                return data
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._wait()

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises UpstreamFailure, UpstreamMalformed above `limit` bytes."""
        await self.head()
        pieces: list[bytes] = []
        size = 0
        while data := await self.chunk():
            size += len(data)
            if size > limit:
                raise UpstreamMalformed(f"The upstream's answer is larger than {limit} bytes.")
            pieces.append(data)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def fail(self, error: UpstreamFailure) -> None:
        """End the exchange with an error; its connection is closed."""
        if not self.complete and self._error is None:
            self._error = error
            self._wake()
            self._connection.abort()

    def close(self) -> None:
        """Give the exchange up; an incomplete one closes its connection, which cancels it."""
        if not self.complete and self._error is None:
            self._error = UpstreamCut("The exchange was given up.")
            self._connection.abort()

    def release(self) -> None:
        """Nothing more is wanted of an answer that is about to end by itself.

        Its connection is kept if the answer completes within `LINGER_SECONDS`.
        """
        if not self.complete and self._error is None:
            self._connection.loop.call_later(LINGER_SECONDS, self.close)

    # -- called by the connection

    def received_head(self, status: int) -> None:
        self.status = status
        self._wake()

    def received_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > READ_AHEAD_BYTES and not self._paused:
            self._paused = True
            self._connection.pause()
        self._wake()

    def completed(self) -> None:
        self.complete = True
        self._wake()

    def let_go(self) -> None:
        """The next exchange must not wait for this one's slow reader."""
        if self._paused:
            self._paused = False
            self._connection.resume()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        waiter = self._waiter = self._connection.loop.create_future()
        await waiter


class _Connection(asyncio.Protocol):
    """One connection to the origin; serves one exchange at a time."""

    __slots__ = ("_parser", "_pool", "_response", "_transport", "alive", "loop", "served")

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self.loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._response: Response | None = None
        self.alive = False
        self.served = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.alive = True

    def exchange(self, data: bytes) -> Response:
        """Send a request and return its answer to come."""
        response = self._response = Response(self)
        self._transport.write(data)
        return response

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # bytes that nobody asked for: never trust this socket again
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(UpstreamMalformed("The upstream's answer is not HTTP/1.1."))

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._pool.forget(self)
        response = self._response
        if response is None:
            return
        if response.status and self._ends_at_close(response):
            self._finish()
        elif response.status:
            self._fail(UpstreamCut("The upstream closed the connection in mid-answer."))
        else:
            self._fail(UpstreamUnreachable("The upstream closed the connection unanswered."))

    @staticmethod
    def _ends_at_close(response: Response) -> bool:
        framed = (b"content-length", b"transfer-encoding")
        return not any(name.lower() in framed for name, _ in response.headers)

    # -- parser callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is not None:
            self._response.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._response is not None and status >= 200:
            self._response.received_head(status)

    def on_body(self, body: bytes) -> None:
        if self._response is not None:
            self._response.received_body(body)

    def on_message_complete(self) -> None:
        if self._response is not None and self._response.status:
            self._finish()
        elif self._response is not None:  # an interim 1xx answer
            self._response.headers.clear()

    # -- ends

    def _finish(self) -> None:
        response, self._response = self._response, None
        assert response is not None
        self.served += 1
        response.let_go()
        if self.alive and self._parser.should_keep_alive():
            self._pool.release(self)
        else:
            self.abort()
        response.completed()

    def _fail(self, error: UpstreamFailure) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.fail(error)
        self.abort()

    def abort(self) -> None:
        """Close at once; the upstream sees that its answer is not wanted."""
        self._response = None
        if self.alive:
            self.alive = False
            self._transport.abort()

    def pause(self) -> None:
        if self.alive:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.alive:
            self._transport.resume_reading()


class HttpPool:
    """Connections to one origin. Unbounded by itself: admission bounds it from above."""

    def __init__(self, origin: Origin, *, idle: int = 256, headers: bytes = b"") -> None:
        self.origin = origin
        self._idle: deque[_Connection] = deque()
        self._idle_limit = idle
        self._all: set[_Connection] = set()
        self._fixed = f"host: {origin.authority}\r\n".encode() + headers

    async def send(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        headers: bytes = b"",
        connect_seconds: float = 5.0,
    ) -> Response:
        """Send a request on an idle connection, or on a new one.

        `headers` are whole lines, each ending in CRLF. Raises UpstreamUnreachable and
        UpstreamTimeout (clock `connect`). Await `Response.head` next.
        """
        message = b"%b %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
            method.encode(), (self.origin.prefix + path).encode(), self._fixed, headers,
            len(body), body,
        )  # fmt: skip
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection.exchange(message)
        return (await self._connect(connect_seconds)).exchange(message)

    async def fetch(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        headers: bytes = b"",
        connect_seconds: float = 5.0,
        watch: Callable[[Response], None] | None = None,
    ) -> Response:
        """`send`, then wait for the head, once more if a kept connection proves dead.

        An upstream may close an idle connection just as it is reused; a request that met
        such a close before any byte of an answer is sent again on a new connection. `watch` is
        given each exchange as it starts, so that a clock can end it with `Response.fail`.
        """
        reused = bool(self._idle)
        while True:
            response = await self.send(
                method, path, body, headers=headers, connect_seconds=connect_seconds
            )
            if watch is not None:
                watch(response)
            try:
                await response.head()
            except UpstreamUnreachable:
                if not reused:
                    raise
                reused = False
                self.drop_idle()
            except BaseException:
                response.close()
                raise
            else:
                return response

    async def _connect(self, seconds: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self), self.origin.host, self.origin.port
                )
        except TimeoutError:
            raise UpstreamTimeout(
                "The upstream did not accept a connection.", clock="connect"
            ) from None
        except OSError as error:
            raise UpstreamUnreachable("The upstream cannot be reached.") from error
        self._all.add(connection)
        return connection

    def release(self, connection: _Connection) -> None:
        if len(self._idle) < self._idle_limit:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: _Connection) -> None:
        self._all.discard(connection)

    def drop_idle(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().abort()

    def close(self) -> None:
        """Close every connection; exchanges in flight fail."""
        self._idle.clear()
        for connection in list(self._all):
            connection.abort()
