"""The seam between request handlers and the HTTP server in front of them.

A handler is an `async (Request, Reply) -> None`. It knows nothing of sockets, so that
another server than ours (`http_server`) could drive it. When the client leaves before his
answer is complete, or the server stops, the server cancels the handler's task, once. A
client that only shuts down his sending side has left too: nothing tells the two apart, and
an answer nobody waits for costs GPU time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NewType, Protocol

Headers = list[tuple[bytes, bytes]]
"""Header fields in order; names in lower case."""


HeaderLines = NewType("HeaderLines", bytes)
"""Header fields as they are written, made by `header_lines` or of nothing but our own words."""

Fields = Iterable[tuple[bytes, bytes]] | HeaderLines
"""Header fields to be written: pairs, which are checked, or lines, which are not again."""


def header_lines(fields: Iterable[tuple[bytes, bytes]]) -> HeaderLines:
    """Header fields as they are written, each line ending in CRLF.

    Raises ValueError for a name or value with CR, LF or NUL: whoever chooses it could add
    fields of his own, or a body, or a whole second message.
    """
    lines = [b"%b: %b\r\n" % field for field in fields]
    block = b"".join(lines)
    if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines) or b"\0" in block:
        raise ValueError("a header field holds CR, LF or NUL")
    return HeaderLines(block)


class Request:
    """One request whose body has arrived whole."""

    __slots__ = ("_by_name", "body", "client", "headers", "method", "path", "query")

    def __init__(
        self, method: str, path: str, query: str, headers: Headers, body: bytes, client: str
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.client = client
        self._by_name: dict[bytes, bytes] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first field of that (lower-case) name."""
        if self._by_name is None:
            self._by_name = dict(reversed(self.headers))
        return self._by_name.get(name)


class Reply(Protocol):
    """Where a handler writes its answer: `send` once, or `start`, `write`..., `end`.

    The server adds `date`, `connection` and the framing fields, and leaves out the body of
    an answer to HEAD; `headers` are all the others. Once the client has left, writing does
    nothing.
    """

    @property
    def started(self) -> bool:
        """Whether a status line has been written."""
        ...

    def send(self, status: int, headers: Fields, body: bytes) -> None:
        """Write a whole answer. Raises ValueError for a field with CR, LF or NUL."""
        ...

    def start(self, status: int, headers: Fields) -> None:
        """Write the head of a streamed answer. Raises ValueError as `send` does."""
        ...

    def write(self, data: bytes) -> None:
        """Write a piece of a streamed answer; never blocks (see `drained`)."""
        ...

    def end(self) -> None:
        """Complete a streamed answer. What the handler still does is not cancelled."""
        ...

    def abort(self) -> None:
        """Break the connection so that the client cannot take the answer for whole.

        What he has not read yet may be lost. The handler itself is not cancelled.
        """
        ...

    @property
    def server_stops(self) -> bool:
        """Whether a cancelled handler was cancelled by the server, which stops.

        If not, the client has left.
        """
        ...

    @property
    def congested(self) -> bool:
        """Whether the client reads slower than we write; then await `drained()`."""
        ...

    async def drained(self) -> None:
        """Return when the client has caught up or left; a client that stalls is cut off."""
        ...


Handler = Callable[[Request, Reply], Awaitable[None]]
"""Answers a request. An `ApiError` it raises before an answer has begun becomes the answer."""

HeadCheck = Callable[[Request], None]
"""Looks at a request before its body is read; raises an `ApiError` to refuse it."""
