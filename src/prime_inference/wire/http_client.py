"""Pooled HTTP/1.1 client for one upstream origin, on httptools.

A general client is the most expensive part of a gateway in Python
(docs/decisions/0002-http-halves.md). This one keeps one parser per connection, builds no
header objects, and hands body bytes over as they come, with backpressure.

Clocks belong to the caller: `Response.fail` ends a wait from outside with the error given.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from prime_inference.domain.errors import (
    NoConnection,
    UpstreamCut,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from prime_inference.wire.http_exchange import ClientConnection, Response
from prime_inference.wire.resolver import Resolver, is_address

__all__ = ["HttpPool", "Origin", "Response"]

LINES = re.compile(rb"(?:[^\r\n\0]+\r\n)*")


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
        odd = parts.query or parts.fragment or "@" in parts.netloc
        if parts.scheme != "http" or not parts.hostname or odd:
            raise ValueError(f"not an http://host:port/path base URL: {base_url!r}")
        if not re.fullmatch(r"[!-~]+", parts.hostname):
            raise ValueError(f"not a host: {parts.hostname!r}")
        parts.hostname.encode("idna")  # UnicodeError, a ValueError, for what no resolver takes
        prefix = parts.path.rstrip("/")
        request_line("GET", prefix + "/")
        return cls(parts.hostname, parts.port or 80, prefix)

    @property
    def authority(self) -> str:
        """Value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@lru_cache(maxsize=256)  # a gateway sends a handful of different ones, over and over
def request_line(method: str, target: str) -> bytes:
    """The first line of a request. Raises ValueError if it would not be exactly that."""
    if not re.fullmatch(r"[A-Z]+ /[!-~]*", f"{method} {target}"):
        raise ValueError(f"not a request method and target: {method!r} {target!r}")
    return f"{method} {target} HTTP/1.1\r\n".encode("ascii")


def check_lines(lines: bytes) -> None:
    """Raise ValueError for header lines that would end the head, or end otherwise than in CRLF."""
    if not LINES.fullmatch(lines):
        raise ValueError("header lines end in CRLF each, and none is empty")


class HttpPool:
    """Connections to one origin. Unbounded by itself: admission bounds it from above.

    `idle` connections are kept at most; with 0 the origin is told to close each. `headers`,
    here and in `send`, are whole lines, each ending in CRLF: `http.header_lines` makes them
    from values that are not our own. Pools of one event loop share a `resolver`.
    """

    def __init__(
        self,
        origin: Origin,
        *,
        idle: int = 256,
        headers: bytes = b"",
        resolver: Resolver | None = None,
    ) -> None:
        check_lines(headers)
        self.origin = origin
        self._address = origin.host if is_address(origin.host) else None
        self._resolver = resolver or Resolver()
        self._idle: deque[ClientConnection] = deque()  # the one used last is taken first
        self._idle_limit = idle
        self._all: set[ClientConnection] = set()
        self._fixed = f"host: {origin.authority}\r\n".encode() + headers
        if not idle:
            self._fixed += b"connection: close\r\n"
        self._closed = False
        # a gateway asks for a handful of paths: their lines are written and checked once
        self._request_line = lru_cache(64)(
            lambda method, path: request_line(method, origin.prefix + path)
        )

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

        Raises UpstreamUnreachable and UpstreamTimeout (clock `connect`), ValueError for a
        path or header lines that would break the request up. Await `Response.head` next.
        """
        head = self._head(method, path, headers, len(body))
        connection = self._take() or await self._connect(connect_seconds)
        return connection.exchange(head, body, head_only=method == "HEAD")

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
        head = self._head(method, path, headers, len(body))
        while True:
            connection = self._take() or await self._connect(connect_seconds)
            response = connection.exchange(head, body, head_only=method == "HEAD")
            if watch is not None:
                watch(response)
            try:
                await response.head()
            except UpstreamUnreachable:
                if not response.reused:
                    raise
                self.drop_idle()  # so that the next one is new, and this the only repetition
            except BaseException:
                response.close()
                raise
            else:
                return response

    def drop_idle(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.pop().abort()

    @property
    def connections(self) -> int:
        """Open connections, idle ones included."""
        return len(self._all)

    def retire(self) -> None:
        """Keep no connection from now on; exchanges in flight go on to their end."""
        self._idle_limit = 0
        self.drop_idle()

    def close(self) -> None:
        """Close every connection; exchanges in flight fail, and later ones."""
        self._closed = True
        self._idle.clear()
        for connection in list(self._all):
            connection.fail(UpstreamCut("The upstream is no longer in use."))

    def _head(self, method: str, path: str, headers: bytes, length: int) -> bytes:
        check_lines(headers)
        line = self._request_line(method, path)
        return b"%b%b%bcontent-length: %d\r\n\r\n" % (line, self._fixed, headers, length)

    def _take(self) -> ClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
        return None

    async def _connect(self, seconds: float) -> ClientConnection:
        try:
            async with asyncio.timeout(seconds):
                connection = await self._open()
        except TimeoutError:
            self._resolver.doubt(self.origin.host)
            raise UpstreamTimeout(
                "The upstream did not accept a connection.", clock="connect"
            ) from None
        except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
            raise NoConnection("The upstream cannot be reached.") from error
        # only now is it certain to be told of its end: a connect that is cancelled is not
        if self._closed or not connection.alive:
            connection.abort()
            raise NoConnection("The upstream closed the connection at once.")
        self._all.add(connection)
        return connection

    async def _open(self) -> ClientConnection:
        """Connect to the first address that accepts. Raises OSError, UnicodeError."""
        host = self.origin.host
        if self._address is not None:
            return await self._open_at(self._address)
        addresses = await self._resolver.addresses(host)
        try:
            return await self._open_at_first(addresses)
        except OSError:
            self._resolver.doubt(host)  # what was known may be old
            later = [one for one in await self._resolver.addresses(host) if one not in addresses]
            if not later:
                raise
        return await self._open_at_first(later)

    async def _open_at_first(self, addresses: Sequence[str]) -> ClientConnection:
        for address in addresses[:-1]:
            with suppress(OSError):
                return await self._open_at(address)
        return await self._open_at(addresses[-1])

    async def _open_at(self, address: str) -> ClientConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: ClientConnection(self), address, self.origin.port
        )
        return connection

    # -- called by connections

    def release(self, connection: ClientConnection) -> None:
        if len(self._idle) < self._idle_limit:
            self._idle.append(connection)
        else:
            connection.abort()

    def forget(self, connection: ClientConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
