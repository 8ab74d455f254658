"""Requests cut out of bytes: framing that two readers could take differently is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.errors import (
    ApiError,
    InternalFailure,
    InvalidRequest,
    MethodUnknown,
)
from prime_inference.wire.http import Request
from prime_inference.wire.http_reader import RequestReader
from prime_inference.wire.http_server import ServerLimits
from tests.wire.peer import HOST, post

LIMITS = ServerLimits(body_bytes=60, header_bytes=200, header_count=8, url_bytes=30)

Event = tuple[object, ...]


class Record:
    """A sink that keeps what it is told and stops where a connection would."""

    def __init__(self, limits: ServerLimits = LIMITS) -> None:
        self.events: list[Event] = []
        self.stopped = False
        self.reader = RequestReader(self, limits, None, "client")

    def feed(self, data: bytes) -> None:
        if not self.stopped:
            self.reader.feed(data)

    def request_began(self) -> None:
        pass

    def head_arrived(self) -> None:
        pass

    def request_arrived(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        if self.stopped:
            return
        self.events.append(
            (request.method, request.path, request.query, request.headers, request.body)
        )
        self.stopped = not keep_alive

    def refuse(self, error: ApiError) -> None:
        if not self.stopped:
            self.events.append((type(error), error.message))
            self.stopped = True


def read(*chunks: bytes, limits: ServerLimits = LIMITS) -> list[Event]:
    record = Record(limits)
    for chunk in chunks:
        record.feed(chunk)
    return record.events


def refused(data: bytes) -> bool:
    events = read(data, limits=ServerLimits())
    return len(events) == 1 and events[0][0] is InvalidRequest


CHUNKED_BODY = b"5\r\nhello\r\n0\r\n\r\n"

FRAMING = [
    # two lengths, or a length that is not one
    *[b"Content-Length: %b\r\n" % value for value in (b"", b"+5", b"-5", b"5,5", b"5 5", b"0x5")],
    b"Content-Length: 5\r\nContent-Length: 5\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: 99999999999999999999999\r\n",
    b"Content-Length : 5\r\n",
    b"Content-Length\t: 5\r\n",
    # length and coding
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: identity\r\n",
    # codings that others may not understand, or understand differently
    *[
        b"Transfer-Encoding: %b\r\n" % value
        for value in (
            b"gzip, chunked", b"chunked, chunked", b"chunked, gzip", b"xchunked", b"chunkedx",
            b"identity", b"identity, chunked", b"chunked;q=1", b",chunked", b"chunked,",
            b'"chunked"', b"\x0bchunked", b"chunked\x00", b"",
        )
    ],
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    # a field that could be two, or none
    b"X: a\r\n b\r\nContent-Length: 5\r\n",
    b"X: a\rContent-Length: 5\r\n",
    b"X: a\nContent-Length: 5\r\n",
    b"X: a\x00b\r\nContent-Length: 5\r\n",
    b": a\r\nContent-Length: 5\r\n",
    b"X\r\nContent-Length: 5\r\n",
    b"X y: a\r\nContent-Length: 5\r\n",
]  # fmt: skip


@pytest.mark.parametrize("fields", FRAMING)
@pytest.mark.parametrize("body", [b"hello", CHUNKED_BODY])
def test_framing_that_could_hide_a_second_request_is_refused(fields: bytes, body: bytes):
    assert refused(b"POST / HTTP/1.1\r\n" + HOST + fields + b"\r\n" + body)


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r", b"GET /\r\n", b"GET / HTTP/0.9\r\n",
        b"GET / HTTP/1.2\r\n", b"GET / HTTP/2.0\r\n",
        b"GET /\x00 HTTP/1.1\r\n", b"GET /\xff HTTP/1.1\r\n", b"GET / x HTTP/1.1\r\n",
        b"GET a HTTP/1.1\r\n", b"GET / http/1.1\r\n",
        b"GET http:// HTTP/1.1\r\n", b"GET http://a:b/ HTTP/1.1\r\n",
    ],
)  # fmt: skip
def test_an_odd_first_line_is_refused(start: bytes):
    assert refused(start + HOST + b"\r\n")


@pytest.mark.parametrize("method", [b"BREW", b"get", b"GETX", b"\x16\x03\x01"])
def test_a_method_that_does_not_exist_is_said_to_be_unknown(method: bytes):
    line = method + b" / HTTP/1.1\r\n" + HOST + b"\r\n"
    for start in (b"", b"\r\n", post(b"hello")):
        for size in (1, len(start + line)):
            data = start + line
            events = read(*[data[at : at + size] for at in range(0, len(data), size)])
            assert events[-1][0] is MethodUnknown


@pytest.mark.parametrize("target", [b"/api/v1/models", b"a:80", b"*"])
@pytest.mark.parametrize("fields", [b"", b"Connection: upgrade\r\nUpgrade: x\r\n"])
def test_a_tunnel_is_refused_once(target: bytes, fields: bytes):
    """To the parser every CONNECT is an upgrade: read anew, it was answered 33 times."""
    connect = b"CONNECT " + target + b" HTTP/1.1\r\n" + HOST + fields + b"\r\n"
    (event,) = read(connect + post(b"hello"))
    assert event[0] is MethodUnknown


@pytest.mark.parametrize(
    "body", [b"-1\r\na", b"1\na", b"1 \r\na", b"1\r\nab\r\n", b"g\r\n", b"\r\n"]
)
def test_odd_chunks_are_refused(body: bytes):
    assert refused(
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + body + b"\r\n0\r\n"
    )


def test_a_request_names_exactly_one_host():
    assert refused(b"GET / HTTP/1.1\r\n\r\n")
    assert refused(b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n")
    assert refused(b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n")
    assert not refused(b"GET / HTTP/1.0\r\n\r\n")


def test_a_coding_in_http_1_0_is_refused():
    """Its sender may not know that it has framed anything (RFC 9112, 6.1)."""
    assert refused(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED_BODY)


def test_whitespace_around_a_length_is_none_of_it():
    for value in (b"5 ", b" 5\t", b"05"):
        data = b"POST / HTTP/1.1\r\n%bContent-Length:%b\r\n\r\nhello" % (HOST, value)
        assert read(data)[0][4] == b"hello"


def test_what_follows_the_last_request_is_not_read():
    last = b"GET /last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    for rest in (b"", b"GET /more HTTP/1.1\r\n\r\n", b"\x00"):
        assert [event[1] for event in read(last + rest)] == ["/last"]


def test_a_body_in_pieces_is_not_copied_for_each_of_them():
    """What makes the time linear, and the memory that of the body."""
    reader = Record(ServerLimits()).reader
    reader.feed(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 100000\r\n\r\n")
    reader.feed(b"a")
    reader.feed(b"b")
    joined = reader._body
    for _ in range(1000):
        reader.feed(b"c")
    assert reader._body is joined
    assert len(joined) == 1002


def test_a_failure_of_our_own_is_reported_as_one(caplog: pytest.LogCaptureFixture):
    def broken(request: Request) -> None:
        raise KeyError("defect")

    record = Record()
    record.reader = RequestReader(record, LIMITS, broken, "client")
    record.feed(post(b""))
    assert record.events == [(InternalFailure, "Internal error.")]
    assert "defect" in caplog.text


LINES = [
    b"GET / HTTP/1.1\r\n", b"POST /a?b HTTP/1.1\r\n", b"HEAD / HTTP/1.0\r\n", b"PRI * HTTP/2.0\r\n",
    b"OPTIONS * HTTP/1.1\r\n", b"CONNECT a:1 HTTP/1.1\r\n", b"GET /" + b"u" * 40, b"GET http://a/ ",
    b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 70\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"Connection: close\r\n",
    b"Connection: keep-alive\r\n", b"Connection: upgrade\r\n", b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"X: " + b"v" * 150 + b"\r\n", b"X" * 60, b"X: y\r\n",
    b"\r\n", b"\n", b"\r", b" ", b":", b"hello", b"5\r\nhello\r\n", b"0\r\n", b"1e\r\n", b"\0",
    b"\xff", post(b""), post(b"hello"), post(b"x" * 40),
    post(b"hello", b"Connection: upgrade", b"Upgrade: x"),
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"5\r\nhello\r\n0\r\nT: x\r\n\r\n",
]  # fmt: skip
STREAMS = st.lists(st.sampled_from(LINES) | st.binary(max_size=8), max_size=16).map(b"".join)


@given(STREAMS, st.lists(st.integers(0, 400), max_size=8))
def test_requests_are_the_same_however_the_bytes_are_cut(stream: bytes, cuts: list[int]):
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[a:b] for a, b in pairwise(bounds)]
    assert outline(read(*chunks)) == outline(read(stream))


@given(STREAMS)
def test_requests_are_the_same_byte_by_byte(stream: bytes):
    assert outline(read(*[bytes([byte]) for byte in stream])) == outline(read(stream))


def outline(events: list[Event]) -> list[Event]:
    """Events; of a refusal only that it is one: which limit is met first depends on the cut."""
    return [(True,) if isinstance(event[0], type) else event for event in events]


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=60),
            st.booleans(),
            st.booleans(),
            st.lists(st.integers(1, 20), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 50),
)
def test_whole_requests_arrive_as_they_were_sent(messages, step: int):
    """Whatever the bodies hold, be it requests: chunked, measured, or with an ignored upgrade."""
    stream = b""
    for body, chunked, upgrade, sizes in messages:
        fields = (b"Connection: upgrade", b"Upgrade: x") if upgrade else ()
        stream += chunked_post(body, sizes, *fields) if chunked else post(body, *fields)
    events = read(*[stream[i : i + step] for i in range(0, len(stream), step)])
    assert [event[4] for event in events] == [body for body, *_ in messages]


def chunked_post(body: bytes, sizes: list[int], *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    data = b"POST / HTTP/1.1\r\n" + HOST + lines + b"Transfer-Encoding: chunked\r\n\r\n"
    index = 0
    while body:
        size = sizes[index % len(sizes)]
        piece, body = body[:size], body[size:]
        data += b"%x\r\n%b\r\n" % (len(piece), piece)
        index += 1
    return data + b"0\r\n\r\n"
