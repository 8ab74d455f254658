"""Reads the requests of one connection, within limits; no I/O of its own."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

import httptools

from prime_inference.domain.errors import (
    ApiError,
    HeadersTooLarge,
    InternalFailure,
    InvalidRequest,
    MethodUnknown,
    PayloadTooLarge,
    UrlTooLong,
)
from prime_inference.wire.http import HeadCheck, Headers, Request, header_lines

if TYPE_CHECKING:
    from prime_inference.wire.http_server import ServerLimits

log = logging.getLogger(__name__)

IDLE, HEAD, BODY = 0, 1, 2
"""Where a reader stands: between requests, in a head, in a body."""

EXAMINED = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"))


class RequestSink(Protocol):
    """Who is told what has been read."""

    def request_began(self) -> None:
        """The first byte of a request has come."""
        ...

    def head_arrived(self) -> None:
        """A head is complete and accepted; its body is to come."""
        ...

    def request_arrived(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        """A request is whole. Raises an ApiError to refuse it and all that follow.

        `keep_alive`: others may follow; `chunked`: its answer may be.
        """
        ...

    def refuse(self, error: ApiError) -> None:
        """What came cannot be served; nothing more may be fed."""
        ...


class RequestReader:
    """Cuts the bytes of a connection into requests.

    Stricter than httptools by itself: what another reader of the same bytes could take
    differently is refused, and no field, chunk extension or trailer makes it hold more than
    the limits say.
    """

    __slots__ = (
        "_body", "_body_size", "_check_head", "_client", "_header_size", "_headers", "_limits",
        "_parser", "_request", "_silent", "_sink", "_upgrading", "_url", "_version",
        "expects_continue", "phase",
    )  # fmt: skip

    def __init__(
        self, sink: RequestSink, limits: ServerLimits, check_head: HeadCheck | None, client: str
    ) -> None:
        self._sink = sink
        self._limits = limits
        self._check_head = check_head
        self._client = client
        self._parser: Any = httptools.HttpRequestParser(self)
        self._silent = 0  # bytes since the request last came further
        self._url = b""
        self._headers: Headers = []
        self._header_size = 0
        self._body: bytes | bytearray = b""
        self._body_size = 0
        self._request: Request | None = None  # whose body is being read
        self._version = ""
        self._upgrading = False
        self.phase = IDLE
        self.expects_continue = False

    @property
    def method(self) -> str:
        """The method of the request read last."""
        return str(self._parser.get_method(), "ascii")

    def feed(self, data: bytes) -> None:
        """Read on; everything found is told to the sink."""
        self._silent += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if not isinstance(cause, ApiError):
                log.error("reading a request failed", exc_info=cause)
                cause = InternalFailure("Internal error.")
            self._sink.refuse(cause)
        except httptools.HttpParserInvalidMethodError:
            self._sink.refuse(MethodUnknown("This does not begin with an HTTP method known here."))
        except httptools.HttpParserError:
            self._sink.refuse(InvalidRequest("This is not a well-formed HTTP/1.1 request."))
        else:
            if self._silent > self._limits.header_bytes:
                in_fields = self.phase == HEAD and self._url
                self._sink.refuse(
                    HeadersTooLarge("A header field is too long.")
                    if in_fields
                    else InvalidRequest("What is no part of a request goes on for too long.")
                )

    def close(self) -> None:
        """Let go of the parser, which holds this reader's methods, and of the sink, which holds
        this reader: no cycle is left, and nothing can be fed any more."""
        self._parser = None
        del self._sink

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade(data[upgrade.args[0] :])

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request anew, less its `Upgrade` fields: no other protocol is spoken here.

        The parser would take what follows such a head for that other protocol.
        """
        start = f"{self.method} {self._url.decode('latin-1')} HTTP/{self._version}\r\n"
        fields = header_lines(field for field in self._headers if field[0] != b"upgrade")
        self._upgrading = False
        self._parser = httptools.HttpRequestParser(self)
        return start.encode("latin-1") + fields + b"\r\n" + rest

    # -- parser callbacks

    def on_message_begin(self) -> None:
        self.phase = HEAD
        self._silent = 0
        self._url = b""
        self._headers = []
        self._header_size = 0
        self._body = b""
        self._body_size = 0
        self._sink.request_began()

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > self._limits.url_bytes:
            raise UrlTooLong(f"The URL is over the limit of {self._limits.url_bytes} bytes.")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.phase != HEAD:  # a trailer field, which `check_head` has not seen, is dropped
            return
        self._silent = 0
        self._header_size += len(name) + len(value) + 4
        limits = self._limits
        if self._header_size > limits.header_bytes or len(self._headers) >= limits.header_count:
            raise HeadersTooLarge(
                f"The request's headers are over the limit of {limits.header_count} fields"
                f" or {limits.header_bytes} bytes."
            )
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.phase = BODY
        self._version = self._parser.get_http_version()
        length = self._examine()
        if self._upgrading:
            return
        method = self.method
        if method == "CONNECT":  # for the parser all that follows is the tunnel's
            raise MethodUnknown("No tunnels are made here.")
        path, query = _target(self._url)
        request = self._request = Request(method, path, query, self._headers, b"", self._client)
        if self._check_head is not None:
            self._check_head(request)
        if length > self._limits.body_bytes:
            raise self._too_large()
        self._sink.head_arrived()

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        self._body_size += len(body)
        if self._body_size > self._limits.body_bytes:
            raise self._too_large()
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:  # not a list of pieces: a body in chunks of two bytes would be an object for each
            self._body = bytearray(self._body) + body

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        request, self._request = self._request, None
        assert request is not None
        self.phase = IDLE
        request.body = bytes(self._body)  # no copy where it came in one piece
        self._body = b""
        keep_alive = self._parser.should_keep_alive()
        self._sink.request_arrived(request, keep_alive, self._version == "1.1")

    def _examine(self) -> int:
        """Look at the fields that concern the transfer; returns the declared body length.

        Refuses, with what httptools refuses already, every head whose framing another
        reader could take differently (RFC 9112, sections 3.2, 6.1 and 11.2).
        """
        http_1_1 = self._version == "1.1"
        if not http_1_1 and self._version != "1.0":
            raise InvalidRequest("Only HTTP/1.1 and HTTP/1.0 are spoken here.")
        self.expects_continue = False
        hosts = length = 0
        for name, value in self._headers:
            if name not in EXAMINED:
                continue
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                length = int(value)
            elif name == b"expect":
                self.expects_continue = http_1_1 and value.lower() == b"100-continue"
            elif name == b"upgrade":
                self._upgrading = self._parser.should_upgrade()
            elif not http_1_1 or value.strip().lower() != b"chunked":
                raise InvalidRequest("The only transfer coding here is `chunked`, in HTTP/1.1.")
        if hosts > 1 or (http_1_1 and not hosts):
            raise InvalidRequest("A request has exactly one Host header.")
        return length

    def _too_large(self) -> PayloadTooLarge:
        limit = self._limits.body_bytes
        return PayloadTooLarge(f"The request body is larger than the limit of {limit} bytes.")


def _target(url: bytes) -> tuple[str, str]:
    """Path and query of a request target, undecoded."""
    if url.startswith(b"/"):
        path, _, query = url.partition(b"?")
        return path.decode("latin-1"), query.decode("latin-1")
    if url == b"*":
        return "*", ""
    with contextlib.suppress(httptools.HttpParserInvalidURLError):
        parsed = httptools.parse_url(url)
        return (parsed.path or b"/").decode("latin-1"), (parsed.query or b"").decode("latin-1")
    raise InvalidRequest("The request target is not a path.")
