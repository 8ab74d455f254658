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
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httptools

from prime_inference.domain.errors import ApiError, InternalFailure, InvalidRequest, PayloadTooLarge
from prime_inference.wire.http import Handler, HeadCheck, Headers, Request

log = logging.getLogger(__name__)

RenderError = Callable[[ApiError], tuple[int, Headers, bytes]]
"""Turns an error into the status, headers and body of an answer."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a client may make the server hold. Sizes in bytes, times in seconds."""

    body_bytes: int = 20 * 1024 * 1024  # a 1M-token prompt is about 5 MB of JSON
    header_bytes: int = 32 * 1024  # nginx's default total for large headers
    header_count: int = 100
    url_bytes: int = 8 * 1024
    header_seconds: float = 20.0  # a slow-loris client may hold a socket this long
    body_seconds: float = 120.0  # 20 MB over a 1.3 Mbit/s uplink
    idle_seconds: float = 75.0  # above the 60 s that load balancers keep idle sockets
    linger_seconds: float = 2.0  # reading on after a refusal, so that the client can see it
    write_buffer_bytes: int = 256 * 1024  # above this the client is congested


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


class _Connection(asyncio.Protocol):
    """One client connection; also the `Reply` of the request being served on it."""

    __slots__ = (
        "_body", "_body_size", "_chunked", "_client", "_congestion", "_deaf", "_header_size",
        "_headers", "_keep_alive", "_loop", "_parser", "_pending", "_request", "_server", "_task",
        "_timer", "_transport", "_url", "closing", "ended", "started",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set on connection
        self._client = ""
        self._task: asyncio.Task[None] | None = None
        self._pending: deque[tuple[Request, bool, bool]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._congestion: asyncio.Future[None] | None = None
        self._request: Request | None = None
        self._url = b""
        self._headers: Headers = []
        self._header_size = 0
        self._body: list[bytes] = []
        self._body_size = 0
        self._keep_alive = True
        self._chunked = True
        self._deaf = False  # a refused request's remaining bytes are read and thrown away
        self.started = False
        self.ended = False
        self.closing = False

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._transport.set_write_buffer_limits(high=self._server.limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._client = peer[0] if isinstance(peer, tuple) else ""
        self._server.connections.add(self)
        self._arm(self._server.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self._disarm()
        self._server.connections.discard(self)
        self._pending.clear()
        if self._congestion is not None and not self._congestion.done():
            self._congestion.set_result(None)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._congestion = self._loop.create_future()

    def resume_writing(self) -> None:
        congestion, self._congestion = self._congestion, None
        if congestion is not None and not congestion.done():
            congestion.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self.closing or self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._keep_alive = False  # an Upgrade is ignored: answered as plain HTTP, then closed
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, ApiError):
                self._refuse(cause)
            else:
                log.error("HTTP callback failed", exc_info=cause)
                self._refuse(InternalFailure("Internal error."))
        except httptools.HttpParserError:
            self._refuse(InvalidRequest("This is not a well-formed HTTP/1.1 request."))

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._header_size = 0
        self._body = []
        self._body_size = 0
        if self._task is None:
            self._arm(self._server.limits.header_seconds)

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._server.limits.url_bytes:
            raise InvalidRequest("The URL is too long.")

    def on_header(self, name: bytes, value: bytes) -> None:
        limits = self._server.limits
        self._header_size += len(name) + len(value) + 4
        if self._header_size > limits.header_bytes or len(self._headers) >= limits.header_count:
            raise InvalidRequest(
                f"The request's headers are over the limit of {limits.header_count} fields"
                f" or {limits.header_bytes} bytes."
            )
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        url = httptools.parse_url(self._url)
        query = url.query.decode("latin-1") if url.query else ""
        path = (url.path or b"/").decode("latin-1")
        method = self._parser.get_method().decode("ascii")
        request = Request(method, path, query, self._headers, b"", self._client)
        self._request = request
        if self._server.check_head is not None:
            self._server.check_head(request)
        length = request.header(b"content-length")
        if length is not None and int(length) > self._server.limits.body_bytes:
            raise self._too_large()
        if self._task is None:
            if request.header(b"expect") == b"100-continue":
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._arm(self._server.limits.body_seconds)

    def on_body(self, body: bytes) -> None:
        self._body_size += len(body)
        if self._body_size > self._server.limits.body_bytes:
            raise self._too_large()
        self._body.append(body)

    def on_message_complete(self) -> None:
        request = self._request
        assert request is not None
        self._request = None
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        keep_alive = self._parser.should_keep_alive()
        chunked = self._parser.get_http_version() != "1.0"
        if self._task is None:
            self._serve(request, keep_alive, chunked)
            return
        self._pending.append((request, keep_alive, chunked))
        self._transport.pause_reading()

    def _too_large(self) -> PayloadTooLarge:
        limit = self._server.limits.body_bytes
        return PayloadTooLarge(f"The request body is larger than the limit of {limit} bytes.")

    # -- serving

    def _serve(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        self._disarm()
        self._keep_alive = keep_alive and not self._deaf and not self._server.draining
        self._chunked = chunked
        self.started = self.ended = False
        self._task = self._loop.create_task(self._run(request))

    async def _run(self, request: Request) -> None:
        try:
            await self._server.handler(request, self)
        except asyncio.CancelledError:
            if not self.closing:
                self.abort()
        except Exception:
            log.exception("request handler failed")
            self._fail()
        finally:
            self._task = None
            self._after_reply()

    def _fail(self) -> None:
        if self.started:
            self.abort()
        else:
            self.send(*self._server.render_error(InternalFailure("Internal error.")))

    def _after_reply(self) -> None:
        if self.closing:
            return
        if not self.ended:
            self.abort()
        elif not self._keep_alive:
            self.closing = True
            self._transport.close()
        elif self._pending:
            following = self._pending.popleft()
            if not self._pending:
                self._transport.resume_reading()
            self._serve(*following)
        else:
            self._arm(self._server.limits.idle_seconds)

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that will not be read to its end, then close."""
        self._deaf = True
        self._keep_alive = False
        if self._task is not None:  # an earlier request's answer comes first, and is the last
            return
        self.started = self.ended = False
        self.send(*self._server.render_error(error))
        self._arm(self._server.limits.linger_seconds)

    # -- Reply

    def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        if self.closing:
            return
        assert not self.started, "an answer was already started"
        self.started = self.ended = True
        head = self._head(status, headers)
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        head.append(body)
        self._transport.write(b"".join(head))

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self.closing:
            return
        assert not self.started, "an answer was already started"
        self.started = True
        self._keep_alive = self._keep_alive and self._chunked
        head = self._head(status, headers)
        head.append(b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        self._transport.write(b"".join(head))

    def write(self, data: bytes) -> None:
        if self.closing or not data:
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self.closing:
            return
        self.ended = True
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")

    def abort(self) -> None:
        self.closing = True
        self._transport.abort()

    @property
    def congested(self) -> bool:
        return self._congestion is not None

    async def drained(self) -> None:
        if self._congestion is not None:
            await asyncio.shield(self._congestion)

    def _head(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
        head = [STATUS_LINES[status], self._server.date_line()]
        head += [b"%b: %b\r\n" % field for field in headers]
        if not self._keep_alive:
            head.append(b"connection: close\r\n")
        return head

    # -- time limits and closing

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._expire)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self.closing = True
        self._transport.close()

    def close_when_idle(self) -> None:
        """Take no further request; close now if none is being served."""
        self._keep_alive = False
        self._pending.clear()
        if self._task is None and not self.closing:
            self._expire()

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task of the request being served."""
        return self._task


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
        self.connections: set[_Connection] = set()
        self.loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by `start`
        self._listener: asyncio.Server | None = None
        self._date = (0, b"")

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. Raises OSError when it is taken."""
        self.loop = asyncio.get_running_loop()
        listener = socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=2048,  # a thousand agents may connect at once; the kernel caps it at somaxconn
        )
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener = await self.loop.create_server(lambda: _Connection(self), sock=listener)
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

    async def drain(self, seconds: float) -> None:
        """Stop listening, let requests in flight finish for at most `seconds`, then close."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        tasks = [connection.task for connection in self.connections if connection.task]
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)
        await self.close()

    async def close(self) -> None:
        """Stop at once: connections are aborted and their handlers cancelled."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        tasks = [connection.task for connection in self.connections if connection.task]
        for connection in list(self.connections):
            connection.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=5)
