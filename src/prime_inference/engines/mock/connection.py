"""The mock engine's side of a TCP connection.

Not `wire.http_server`: this one has to break the protocol on demand, and has to be cheap
enough that load generator and mock fit on one core next to a fast gateway. So there is no
task per request; a script is played by callbacks.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from prime_inference.engines.mock.journal import CLIENT_LEFT, Seen
from prime_inference.engines.mock.load import Load
from prime_inference.engines.mock.pacer import Pacer
from prime_inference.engines.mock.script import Ending, Script, error_body, json_answer
from prime_inference.wire.http import Headers

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 256 * 1024  # above this a paced stream waits for its reader

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds


class Answerer(Protocol):
    """What connections need of the engine."""

    pacer: Pacer
    connections: set[MockConnection]
    load: Load

    def answer(
        self, method: str, target: str, headers: Headers, body: bytes
    ) -> tuple[Script, Seen | None]:
        """What to send for a request."""
        ...


class Exchange:
    """Plays one script on a connection."""

    __slots__ = ("_at", "_connection", "_due", "_index", "_pacer", "_script", "over", "seen")

    def __init__(self, connection: MockConnection, script: Script, seen: Seen | None) -> None:
        self._connection = connection
        self._pacer = connection.engine.pacer
        self._script = script
        self._index = 0
        self._at = self._due = connection.loop.time()
        self.seen = seen
        self.over = False
        if seen is not None:
            seen.status = script.status
            connection.engine.load.begin()

    def play(self) -> None:
        """Write what is due now, and have the pacer call for the rest."""
        self._proceed([])

    def _on_due(self) -> None:
        if self.over:
            return
        if self._connection.congestion is not None:
            self._connection.congestion = self._on_due
            return
        self._proceed([self._take()])

    def _take(self) -> bytes:
        step = self._script.steps[self._index]
        self._index += 1
        if self.seen is not None:
            self.seen.tokens = step.tokens
        return step.data

    def _proceed(self, pieces: list[bytes]) -> None:
        """Write `pieces` with all that follows them at once, then wait or end."""
        steps = self._script.steps
        while self._index < len(steps) and steps[self._index].after <= 0:
            pieces.append(self._take())
        if pieces:
            self._connection.write(b"".join(pieces))
        if self._index < len(steps):
            self._due += steps[self._index].after
            self._pacer.at(self._due, self._on_due)
        elif self._script.rest > 0:
            self._pacer.at(self._due + self._script.rest, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self.over:
            return
        if self._script.ending is Ending.HANG:
            if self.seen is not None:
                self.seen.outcome = self._script.outcome
            return
        self._close(self._script.outcome)
        self._connection.ended(self._script.ending)

    def leave(self) -> None:
        """The client has gone before the end."""
        if not self.over:
            self._close(CLIENT_LEFT)

    def _close(self, outcome: str) -> None:
        self.over = True
        if self.seen is not None:
            self._connection.engine.load.end()
            self.seen.outcome = outcome
            self.seen.seconds = self._connection.loop.time() - self._at


class MockConnection(asyncio.Protocol):
    """Reads requests and plays the engine's answers, one after the other."""

    __slots__ = (
        "_body", "_exchange", "_headers", "_parser", "_transport", "_url", "_waiting",
        "congestion", "engine", "loop",
    )  # fmt: skip

    def __init__(self, engine: Answerer, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self.congestion: Callable[[], None] | None = None  # call when the client has caught up
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._exchange: Exchange | None = None
        self._waiting: deque[tuple[str, str, Headers, bytes]] = deque()
        self._url = b""
        self._headers: Headers = []
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.engine.connections.discard(self)
        self._waiting.clear()
        if self._exchange is not None:
            self._exchange.leave()

    def pause_writing(self) -> None:
        self.congestion = _nothing

    def resume_writing(self) -> None:
        waiting, self.congestion = self.congestion, None
        if waiting is not None:
            waiting()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            log.error("the mock engine failed", exc_info=error.__context__)
            self.abort()
        except httptools.HttpParserError:
            body = error_body("This is not HTTP/1.1.", "invalid_request_error", 400)
            self.write(json_answer(400, body))
            self._transport.close()

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode("ascii")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = (method, self._url.decode("latin-1"), self._headers, body)
        if self._exchange is None:
            self._serve(*request)
        else:
            self._waiting.append(request)

    # -- answering

    def _serve(self, method: str, target: str, headers: Headers, body: bytes) -> None:
        script, seen = self.engine.answer(method, target, headers, body)
        self._exchange = Exchange(self, script, seen)
        self._exchange.play()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def ended(self, ending: Ending) -> None:
        """An exchange is over; take the next request or close."""
        self._exchange = None
        if ending is Ending.KEEP:
            if self._waiting:
                self._serve(*self._waiting.popleft())
        elif ending is Ending.CLOSE:
            self._transport.close()
        else:
            self._reset()

    def _reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._transport.abort()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        return self._exchange is not None


def _nothing() -> None:
    """What to call when a client has caught up that nobody waited for."""
