"""The seam between request handlers and the HTTP server in front of them.

A handler is an `async (Request, Reply) -> None`. It knows nothing of sockets: the
server of ours (`http_server`) and the ASGI front (`asgi`) drive the same handlers. When
the client leaves, the server cancels the handler's task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

Headers = list[tuple[bytes, bytes]]
"""Header fields in order; names in lower case."""


class Request:
    """One request whose body has arrived whole."""

    __slots__ = ("body", "client", "headers", "method", "path", "query")

    def __init__(
        self, method: str, path: str, query: str, headers: Headers, body: bytes, client: str
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.client = client

    def header(self, name: bytes) -> bytes | None:
        """The first field of that (lower-case) name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Reply(Protocol):
    """Where a handler writes its answer: `send` once, or `start`, `write`..., `end`."""

    @property
    def started(self) -> bool:
        """Whether a status line has been written."""
        ...

    def send(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer."""
        ...

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the head of a streamed answer."""
        ...

    def write(self, data: bytes) -> None:
        """Write a piece of a streamed answer; never blocks (see `drained`)."""
        ...

    def end(self) -> None:
        """Complete a streamed answer."""
        ...

    def abort(self) -> None:
        """Close the connection so that the client cannot take the answer for whole."""
        ...

    @property
    def congested(self) -> bool:
        """Whether the client reads slower than we write; then await `drained()`."""
        ...

    async def drained(self) -> None:
        """Return when the client has caught up."""
        ...


Handler = Callable[[Request, Reply], Awaitable[None]]
HeadCheck = Callable[[Request], None]
"""Looks at a request before its body is read; raises an `ApiError` to refuse it."""
