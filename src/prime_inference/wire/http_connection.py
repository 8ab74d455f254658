"""One client connection of the HTTP server: requests in, answers out, in order."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Coroutine
from http import HTTPStatus
from inspect import CORO_CREATED, getcoroutinestate
from math import inf
from typing import TYPE_CHECKING, Any, cast

from prime_inference.domain.errors import ApiError, InternalFailure, InvalidRequest, ShuttingDown
from prime_inference.wire.http import Fields, Request, header_lines
from prime_inference.wire.http_reader import BODY, HEAD, IDLE, RequestReader

if TYPE_CHECKING:
    from prime_inference.wire.http_server import HttpServer

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0  # for the first request of a connection made before a drain: it is on its way
BODILESS = frozenset((204, 304))
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


class Connection(asyncio.Protocol):
    """One client connection; also the `Reply` of the request being served on it.

    Requests are parsed as they come and served one at a time, in order. Reading never
    stops, because only a reader learns that the client has left: what comes too early
    waits, up to a limit, and what comes after a refusal is thrown away.
    """

    __slots__ = (
        "_chunked", "_congestion", "_deaf", "_fresh", "_head_only", "_keep_alive", "_limits",
        "_loop", "_lost", "_queue", "_queued_bytes", "_reader", "_server", "_streaming", "_task",
        "_transport", "_unsent", "closing", "deadline", "ended", "started",
    )  # fmt: skip

    _reader: RequestReader

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = server.loop
        self._transport: Any = None  # uvloop's transports are of a class of their own
        self._queue: deque[tuple[Request | ApiError, bool, bool]] = deque()
        self._queued_bytes = 0
        self._deaf = False  # something came that is not read: nor is what follows it
        self._task: asyncio.Task[None] | None = None
        self._congestion: asyncio.Future[None] | None = None
        self._unsent = 0  # bytes, when the time limit for writing was last set
        self._fresh = True  # no request has come yet
        self._keep_alive = True
        self._chunked = True
        self._head_only = False
        self._streaming = False
        self._lost = False
        self.started = False
        self.ended = False
        self.closing = False
        self.deadline = inf  # event loop time; the server calls `expire` some time after it

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task of the request being served."""
        return self._task

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        client = peer[0] if isinstance(peer, tuple) else ""
        self._reader = RequestReader(self, self._limits, self._server.check_head, client)
        self._server.connections.add(self)
        self._wait(self._limits.header_seconds)
        if self._server.draining:  # taken just before the listener was closed
            self._wait(FRESH_SECONDS)

    def data_received(self, data: bytes) -> None:
        if not self._deaf and not self.closing:
            self._reader.feed(data)

    def eof_received(self) -> None:
        if self._task is not None and not self.ended:
            self.cut()
        else:
            self._close()

    def pause_writing(self) -> None:
        self._congestion = self._loop.create_future()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        self._decongest()
        if self.closing:
            return
        if self._task is not None:
            self.deadline = inf
        else:
            self._serve_next()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = self._lost = True
        self.deadline = inf
        self._reader.close()
        self._queue.clear()
        self._decongest()
        task = self._task
        if task is not None and not self.ended:
            task.cancel()
            coroutine = cast("Coroutine[Any, Any, None]", task.get_coro())
            if getcoroutinestate(coroutine) == CORO_CREATED:
                self._task = None  # it will not even begin, so that it cannot end either
        if self._task is None:
            self._server.forget(self)

    def _decongest(self) -> None:
        congestion, self._congestion = self._congestion, None
        if congestion is not None and not congestion.done():
            congestion.set_result(None)

    # -- told by the reader

    def request_began(self) -> None:
        if self._task is None and self._congestion is None:
            self._wait(self._limits.header_seconds)

    def head_arrived(self) -> None:
        if self._task is None and self._congestion is None:
            self._wait_for_body()

    def request_arrived(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        self._fresh = False
        if self._task is None and self._congestion is None:
            self._serve(request, keep_alive, chunked)
        else:
            self._enqueue(request, keep_alive, chunked)

    def refuse(self, error: ApiError) -> None:
        """Answer, in its turn, what cannot be served, and nothing after it.

        What follows a request with `Connection: close` comes here too; its turn does not come.
        """
        self._deaf = True
        if self._task is None and self._congestion is None:
            self._answer_refusal(error)
        else:
            self._queue.append((error, False, True))

    def _enqueue(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        limits = self._limits
        self._queued_bytes += len(request.body)
        if len(self._queue) >= limits.pipelined_requests or self._queued_bytes > limits.body_bytes:
            raise InvalidRequest("Too many requests are pipelined.")
        self._queue.append((request, keep_alive, chunked))

    # -- serving

    def _serve(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        self.deadline = inf
        self._keep_alive = keep_alive
        self._chunked = chunked
        self._head_only = request.method == "HEAD"
        self.started = self.ended = self._streaming = False
        self._task = self._loop.create_task(self._run(request))

    async def _run(self, request: Request) -> None:
        try:
            await self._server.handler(request, self)
            if not self.ended and not self.closing:
                raise RuntimeError("the request handler returned without completing its answer")
        except asyncio.CancelledError:
            if self._server.stopping and not self.started:
                self._fail(ShuttingDown())
            elif not self.ended:
                self.abort()
        except ApiError as error:
            self._fail(error)
            error.dealt_with()
        except Exception:
            log.exception("request handler failed")
            self._fail(InternalFailure("Internal error."))
        finally:
            self._task = None
            self._after_reply()

    def _fail(self, error: ApiError) -> None:
        if not self.started:
            self.send(*self._server.render_error(error))
        elif not self.ended:
            self.abort()

    def _after_reply(self) -> None:
        if self._lost:
            self._server.forget(self)
        elif self.closing:
            pass  # the connection's end is on its way
        elif self._server.stopping:
            self._close()
        elif not self._keep_alive:
            self._linger() if self._deaf else self._close()
        elif self._congestion is None:
            self._serve_next()

    def _serve_next(self) -> None:
        """Serve what is queued, or wait for what is to come."""
        if self._queue:
            following, keep_alive, chunked = self._queue.popleft()
            if isinstance(following, Request):
                self._queued_bytes -= len(following.body)
                self._serve(following, keep_alive, chunked)
            else:
                self._answer_refusal(following)
        elif self._reader.phase == HEAD:
            self._wait(self._limits.header_seconds)
        elif self._reader.phase == BODY:
            self._wait_for_body()
        elif self._server.draining:
            self._close()
        else:
            self._wait(self._limits.idle_seconds)

    def _answer_refusal(self, error: ApiError) -> None:
        self._keep_alive = False
        self._head_only = self._reader.method == "HEAD"
        self.started = self.ended = False
        self.send(*self._server.render_error(error))
        self._linger()

    # -- Reply

    def send(self, status: int, headers: Fields, body: bytes) -> None:
        if self.closing:
            return
        assert not self.started, "an answer was already started"
        head = self._head(status, headers)
        self.started = self.ended = True
        if status in BODILESS:
            self._transport.write(head + b"\r\n")
        elif self._head_only:
            self._transport.write(b"%bcontent-length: %d\r\n\r\n" % (head, len(body)))
        else:
            self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))

    def start(self, status: int, headers: Fields) -> None:
        if self.closing:
            return
        assert not self.started, "an answer was already started"
        self._keep_alive = self._keep_alive and self._chunked
        head = self._head(status, headers)
        self.started = self._streaming = True
        framing = b"transfer-encoding: chunked\r\n\r\n" if self._chunked else b"\r\n"
        self._transport.write(head + framing)

    def write(self, data: bytes) -> None:
        if self.closing or not data:
            return
        assert self._streaming, "no streamed answer is open"
        if self._head_only:
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end(self) -> None:
        if self.closing:
            return
        assert self._streaming, "no streamed answer is open"
        self._streaming = False
        self.ended = True
        if self._chunked and not self._head_only:
            self._transport.write(b"0\r\n\r\n")

    def abort(self) -> None:
        self.ended = True
        if self.started and not self._chunked and not self.closing:
            # the end of the connection would be the end of the answer: only a reset is not
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE
            )
        self.cut()

    @property
    def server_stops(self) -> bool:
        return self._server.stopping

    @property
    def congested(self) -> bool:
        return self._congestion is not None

    async def drained(self) -> None:
        if self._congestion is not None:
            await asyncio.shield(self._congestion)

    def _head(self, status: int, headers: Fields) -> bytes:
        if self._server.draining and not self._queue:
            self._keep_alive = False
        if not self._keep_alive:
            connection = b"connection: close\r\n"
        else:  # HTTP/1.0 keeps a connection only where both sides say so
            connection = b"" if self._chunked else b"connection: keep-alive\r\n"
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        return b"".join((STATUS_LINES[status], self._server.date_line(), lines, connection))

    # -- time limits and closing

    def _wait(self, seconds: float) -> None:
        self.deadline = self._loop.time() + seconds

    def _wait_for_body(self) -> None:
        if self._reader.expects_continue:
            self._reader.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._wait(self._limits.body_seconds)

    def _wait_for_reader(self) -> None:
        self._unsent = self._transport.get_write_buffer_size()
        self._wait(self._limits.write_seconds)

    def expire(self) -> None:
        """The time limit of what this connection does has passed."""
        if not self.closing and self._congestion is None:
            self._close()
        elif self._transport.get_write_buffer_size() < self._unsent:
            self._wait_for_reader()  # the client is slow, but takes what it is sent
        else:
            self.cut()

    def close_when_idle(self) -> None:
        """Close now if no request is being read or served; else after the last answer.

        A connection that has had no request is one whose request is on its way.
        """
        idle = self._task is None and not self._queue and self._reader.phase == IDLE
        if not idle or self.closing:
            return
        if self._fresh:
            self._wait(FRESH_SECONDS)
        else:
            self._close()

    def stop(self) -> None:
        """End now: who is being served gets the end that his handler finds for it."""
        task, self._deaf = self._task, True
        self._queue.clear()
        if task is None or self.closing:
            if not self.closing:
                self._close()
            return
        if self.ended:  # answered, but at work after it
            self._close()
            return
        task.cancel()
        coroutine = cast("Coroutine[Any, Any, None]", task.get_coro())
        if getcoroutinestate(coroutine) == CORO_CREATED:
            self._task = None  # it will not even begin, so that it cannot end either
            self._fail(ShuttingDown())
            self._close()

    def cut(self) -> None:
        """Close at once; what was written may be lost."""
        self.closing = True
        if not self._lost:
            self._transport.abort()

    def _close(self) -> None:
        """Close once everything written has gone out."""
        self.closing = True
        self._wait_for_reader()
        self._transport.close()

    def _linger(self) -> None:
        """End the answer, then read on for a while.

        To close with unread bytes resets the connection, which takes the answer away from a
        client that is still sending (RFC 9112, section 9.6).
        """
        self.closing = True
        self._unsent = self._transport.get_write_buffer_size()
        self._wait(self._limits.linger_seconds)
        self._transport.write_eof()
