"""One request to an upstream and its answer, on one connection of a pool."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import httptools

from prime_inference.domain.errors import (
    BodyTooLarge,
    UpstreamCut,
    UpstreamFailure,
    UpstreamMalformed,
    UpstreamUnreachable,
)

if TYPE_CHECKING:
    from prime_inference.wire.http_client import HttpPool

log = logging.getLogger(__name__)

LINGER_SECONDS = 1.0  # an engine's end of chunked body follows its last event at once
READ_AHEAD_BYTES = 256 * 1024  # buffered for a slow consumer before the socket is paused
FIELD_COUNT = 256  # header fields of an answer; engines send about five, CDNs fifty
FIELD_BYTES = 64 * 1024  # one header field or chunk extension; also nginx's largest buffer
JOINED_BYTES = 64 * 1024  # a body up to this size is copied to go out in one packet with its head


class Response:
    """The answer of one exchange; `status` is 0 until the head has arrived.

    For one consumer, who ends with `close` or `release` whatever happened: an answer that
    was not read to its end keeps its connection, and its upstream working, until then.
    """

    __slots__ = (
        "_buffered", "_chunks", "_connection", "_error", "_paused", "_waiter", "begun", "complete",
        "headers", "reused", "status",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, reused: bool) -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamFailure | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = False  # a byte of the answer has come
        self.complete = False
        self.reused = reused  # its connection has served another exchange before

    def header(self, name: bytes) -> bytes | None:
        """The first header field of that (lower-case) name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None

    @property
    def has_news(self) -> bool:
        """Whether there is more of the answer, or its end, than was handed over."""
        return bool(self._chunks) or self.complete or self._error is not None

    async def head(self) -> None:
        """Wait for the status line and headers. Raises UpstreamFailure."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def chunk(self) -> bytes:
        """The next body bytes; empty when the answer is complete.

        Raises UpstreamFailure, after all that came before it has been handed over.
        """
        while True:
            if self._chunks:
                data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                self._buffered = 0
                self.let_go()
                return data
            if self._error is not None:
                raise self._error
            if self.complete:
                return b""
            await self._wait()

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises UpstreamFailure, BodyTooLarge above `limit` bytes."""
        await self.head()
        pieces: list[bytes] = []
        size = 0
        while data := await self.chunk():
            size += len(data)
            if size > limit:
                self.close()
                raise BodyTooLarge(f"The upstream's answer is larger than {limit} bytes.")
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
        self.fail(UpstreamCut("The exchange was given up."))

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
        """Read on, if reading was paused."""
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


class ClientConnection(asyncio.Protocol):
    """One connection to the origin; serves one exchange at a time."""

    __slots__ = (
        "_head_only", "_parser", "_pool", "_response", "_silent", "_transport", "alive", "loop",
        "served",
    )  # fmt: skip

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self.loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._response: Response | None = None
        self._head_only = False
        self._silent = 0  # bytes since the answer last came further
        self.alive = False
        self.served = 0

    def exchange(self, head: bytes, body: bytes, *, head_only: bool = False) -> Response:
        """Send a request and return its answer to come; `head_only`: one to HEAD."""
        response = self._response = Response(self, self.served > 0)
        self._head_only = head_only
        if len(body) > JOINED_BYTES:
            self._transport.write(head)
            self._transport.write(body)
        else:
            self._transport.write(head + body)
        return response

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.alive = True

    def data_received(self, data: bytes) -> None:
        if self._response is None:  # bytes that nobody asked for: never trust this socket again
            self.abort()
            return
        self._silent += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reject(error.__context__)
        else:
            if self._silent > FIELD_BYTES:
                self.fail(UpstreamMalformed("The upstream sent a header field that is too long."))

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        self._pool.forget(self)
        response = self._response
        if response is None:
            pass
        elif exc is None and response.status and self._ends_at_close(response):
            self._finish()
        elif response.begun:
            self.fail(UpstreamCut("The upstream closed the connection in mid-answer."))
        else:
            self.fail(UpstreamUnreachable("The upstream closed the connection unanswered."))
        self._parser = None  # it holds this connection's methods: without it no cycle is left

    @staticmethod
    def _ends_at_close(response: Response) -> bool:
        framed = (b"content-length", b"transfer-encoding")
        return not any(name.lower() in framed for name, _ in response.headers)

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._silent = 0
        if self._response is None:  # a second answer: whose would it be?
            self.abort()
        else:
            self._response.begun = True

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        if response is None or response.status:  # a trailer field is dropped, as it may be
            return
        self._silent = 0
        if len(response.headers) >= FIELD_COUNT:
            raise UpstreamMalformed("The upstream sent too many header fields.")
        response.headers.append((name, value))

    def on_headers_complete(self) -> None:
        response = self._response
        status = self._parser.get_status_code()
        if response is None or 100 <= status < 200:
            return
        if status < 100:
            raise UpstreamMalformed("The upstream sent a status below 100.")
        response.received_head(status)
        if self._head_only:
            self._finish()
            self._parser = httptools.HttpResponseParser(self)  # this one awaits a body

    def on_body(self, body: bytes) -> None:
        if self._response is None:
            self.abort()
        else:
            self._silent = 0
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
        response.let_go()  # the next exchange must not wait for this one's slow reader
        keep = self.alive and self._parser.should_keep_alive()
        if keep and not self._transport.get_write_buffer_size():
            self._pool.release(self)
        else:  # also where an upstream answered before it had read the request
            self.abort()
        response.completed()

    def _reject(self, cause: BaseException | None) -> None:
        """Fail an answer that could not be parsed; `cause` is what a callback here raised."""
        if isinstance(cause, UpstreamFailure):
            self.fail(cause)
            return
        if cause is not None:
            log.error("reading an answer failed", exc_info=cause)
        self.fail(UpstreamMalformed("The upstream's answer is not HTTP/1.1."))

    def fail(self, error: UpstreamFailure) -> None:
        """End the exchange, if one is under way, with an error, and the connection."""
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
        if self.alive and not self._transport.is_closing():
            self._transport.resume_reading()
