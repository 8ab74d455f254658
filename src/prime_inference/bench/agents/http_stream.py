"""A streaming HTTP/1.1 client that does nothing per token but look at the clock.

While a chunked answer streams, pieces are appended to a list with their times; the parser
runs when bytes look like the end of the body, and decides. What an event costs is in
docs/measurements/agent-benchmark.md.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

BODY_END = b"0\r\n\r\n"  # of a chunked body without trailers
SHORT = 2 * len(BODY_END)  # a piece this short may hold only a part of the end
NO_LIMIT = 1 << 60

clock = time.monotonic


@dataclass(frozen=True, slots=True)
class Address:
    """Where an endpoint is, and the path that its API lives under."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, base_url: str) -> Address:
        """Raises ValueError for anything but `http[s]://host[:port]/path`."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ValueError(f"not an http(s)://host:port/path base URL: {base_url!r}")
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        return cls(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Exchange:
    """One request and the raw answer to it.

    `failure` says why it did not end well: `timeout`, `cancelled`, `unreachable`, `cut`,
    `malformed`. `times[i]` is when `bodies[i]` came; `end` is when the last byte did.
    """

    __slots__ = ("bodies", "end", "failure", "headers", "sent", "status", "times")

    def __init__(self) -> None:
        self.sent = 0.0
        self.end = 0.0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.failure: str | None = None
        self.times: list[float] = []
        self.bodies: list[bytes] = []


class _Connection(asyncio.Protocol):
    """Serves one exchange at a time."""

    def __init__(self, client: StreamClient) -> None:
        self._client = client
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._done: asyncio.Future[None] | None = None
        self._exchange = Exchange()
        self._times: list[float] = []  # of pieces that the parser has not seen
        self._pieces: list[bytes] = []
        self._limit = NO_LIMIT
        self._deferred = False
        self._complete = False
        self._now = 0.0
        self.alive = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.alive = True

    def send(self, message: bytes, limit: int) -> tuple[Exchange, asyncio.Future[None]]:
        """Start an exchange, to be given up after `limit` events."""
        self._exchange = Exchange()
        self._deferred = self._complete = False
        self._limit = limit
        self._done = self._client.loop.create_future()
        self._exchange.sent = clock()
        self._transport.write(message)
        return self._exchange, self._done

    def data_received(self, data: bytes) -> None:
        self._times.append(clock())
        self._pieces.append(data)
        if self._limit != NO_LIMIT:
            self._limit -= data.count(b"data:")
            if self._limit <= 0:
                self.give_up("cancelled")
                return
        if self._deferred and len(data) >= SHORT and not data.endswith(BODY_END):
            return
        self._parse()

    def _parse(self) -> None:
        if not self._feed():
            self._end("malformed")
            self.abort()
        elif self._complete:
            self._finish()

    def _feed(self) -> bool:
        """Let the parser see what has come since; whether it is HTTP."""
        pieces = list(zip(self._times, self._pieces, strict=True))
        self._times.clear()
        self._pieces.clear()
        try:
            for time_, piece in pieces:
                self._now = time_
                self._parser.feed_data(piece)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        if self._done is None:
            return
        self._parse()
        if self._done is not None:
            ends_at_close = self._exchange.status and not self._framed()
            self._end(None if ends_at_close else "cut" if self._exchange.status else "unreachable")

    def _framed(self) -> bool:
        framing = (b"content-length", b"transfer-encoding")
        return any(name.lower() in framing for name, _ in self._exchange.headers)

    def _finish(self) -> None:
        keep = self.alive and self._parser.should_keep_alive()
        self._end(None)
        if keep:
            self._client.keep(self)
        else:
            self.abort()

    def _end(self, failure: str | None) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._exchange.failure = failure
        self._exchange.end = self._now if failure is None else clock()
        if not done.done():
            done.set_result(None)

    def give_up(self, why: str) -> None:
        """End the exchange and close the connection; the server sees a client that left."""
        if self._done is not None:
            self._feed()
            self._end(why)
        self.abort()

    def abort(self) -> None:
        if self.alive:
            self.alive = False
            self._transport.abort()

    # -- parser callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._exchange.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._exchange.headers.clear()
            return
        self._exchange.status = status
        chunked = any(n.lower() == b"transfer-encoding" for n, _ in self._exchange.headers)
        self._deferred = chunked and status == 200

    def on_body(self, body: bytes) -> None:
        self._exchange.times.append(self._now)
        self._exchange.bodies.append(body)

    def on_message_complete(self) -> None:
        if self._exchange.status:
            self._complete = True


class StreamClient:
    """Connections to one endpoint, as many as there are requests in flight."""

    def __init__(self, address: Address, *, headers: bytes = b"") -> None:
        self.loop = asyncio.get_running_loop()
        self.in_flight = 0
        self._address = address
        self._ssl = ssl.create_default_context() if address.scheme == "https" else None
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        self._fixed = (
            f"host: {address.authority}\r\ncontent-type: application/json\r\n".encode() + headers
        )

    async def post(
        self, path: str, body: bytes, *, headers: bytes = b"", seconds: float = 600.0,
        cancel_after: int | None = None,
    ) -> Exchange:  # fmt: skip
        """Send and wait for the end of the answer, `seconds` at most.

        `cancel_after` gives up after so many events of a stream. A kept connection that was
        closed before any byte of the answer is replaced once. Never raises for what the
        server does: see `Exchange.failure`.
        """
        message = b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (
            (self._address.prefix + path).encode(), self._fixed, headers, len(body), body
        )  # fmt: skip
        limit = NO_LIMIT if cancel_after is None else max(1, cancel_after)
        self.in_flight += 1
        try:
            connection = self._kept()
            if connection is not None:
                exchange = await self._exchange(connection, message, limit, seconds)
                if exchange.failure != "unreachable":
                    return exchange
            return await self._on_new_connection(message, limit, seconds)
        finally:
            self.in_flight -= 1

    async def _on_new_connection(self, message: bytes, limit: int, seconds: float) -> Exchange:
        started = clock()
        try:
            async with asyncio.timeout(seconds):
                _, connection = await self.loop.create_connection(
                    lambda: _Connection(self), self._address.host, self._address.port,
                    ssl=self._ssl,
                )  # fmt: skip
        except (OSError, TimeoutError):
            failed = Exchange()
            failed.sent, failed.end, failed.failure = started, clock(), "unreachable"
            return failed
        self._all.add(connection)
        exchange = await self._exchange(connection, message, limit, seconds)
        exchange.sent = started  # a connection's set-up is the user's to wait for
        return exchange

    async def _exchange(
        self, connection: _Connection, message: bytes, limit: int, seconds: float
    ) -> Exchange:
        exchange, done = connection.send(message, limit)
        timer = self.loop.call_later(seconds, connection.give_up, "timeout")
        try:
            await done
        finally:
            timer.cancel()
            if not done.done() or done.cancelled():
                connection.give_up("cancelled")
            if not connection.alive:
                self._all.discard(connection)
        return exchange

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        return None

    def keep(self, connection: _Connection) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        """Close every connection."""
        for connection in list(self._all):
            connection.give_up("cancelled")
        self._all.clear()
        self._idle.clear()
