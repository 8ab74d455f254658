"""Answers of upstreams: whole, cut, malformed; never one taken for another."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.domain.errors import (
    UpstreamCut,
    UpstreamFailure,
    UpstreamMalformed,
    UpstreamUnreachable,
)
from prime_inference.wire.http_client import HttpPool, Response
from tests.wire.peer import PATIENCE, eventually
from tests.wire.upstream import OK, Link, StartUpstream, serve_forever

LIMIT = 10_000_000

MEASURED = OK
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
AT_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
FRAMINGS = {"measured": MEASURED, "chunked": CHUNKED, "at close": AT_CLOSE}


async def get(pool: HttpPool, method: str = "GET") -> tuple[Response, bytes]:
    async with asyncio.timeout(PATIENCE):
        response = await pool.fetch(method, "/x", b"")
        return response, await response.read(LIMIT)


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("interim", [b"", INTERIM])
async def test_an_answer_is_whole_however_it_is_cut(
    upstream: StartUpstream, framing: str, interim: bytes
):
    data = interim + FRAMINGS[framing]

    async def script(link: Link) -> None:
        cut = link.index
        await link.request()
        await link.send(data[:cut])
        await asyncio.sleep(0)
        await link.send(data[cut:])

    up = await upstream(script)
    pool = up.pool()
    for _ in range(len(data)):
        response, body = await get(pool)
        assert (response.status, response.complete, body) == (200, True, b"hello")
        assert {name for name, _ in response.headers} <= {
            b"Content-Length", b"Transfer-Encoding", b"Content-Type",
        }  # fmt: skip
        pool.drop_idle()
    pool.close()


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("ending", ["closes", "resets"])
async def test_a_cut_answer_never_looks_complete(
    upstream: StartUpstream, framing: str, ending: str
):
    data = FRAMINGS[framing]
    body_at = data.index(b"\r\n\r\n") + 4

    async def script(link: Link) -> None:
        await link.request()
        await link.send(data[: link.index])
        if ending == "resets":
            await asyncio.sleep(0.005)  # so that the bytes are not dropped with the connection
            link.reset()

    up = await upstream(script)
    pool = up.pool()
    for cut in range(len(data)):
        if framing == "at close" and ending == "closes" and cut >= body_at:
            break  # by its framing this one is complete
        with pytest.raises(UpstreamFailure) as caught:
            await get(pool)
        assert type(caught.value) is (UpstreamCut if cut else UpstreamUnreachable), cut
    await up.deserted()
    pool.close()


async def test_what_came_before_the_cut_is_handed_over_first(upstream: StartUpstream):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")

    pool = (await upstream(script)).pool()
    response = await pool.fetch("GET", "/", b"")
    assert await response.chunk() == b"hello"
    for _ in range(2):
        with pytest.raises(UpstreamCut):
            await response.chunk()
    assert not response.complete
    pool.close()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_is_complete_with_its_head(
    upstream: StartUpstream, status: int
):
    async def script(link: Link) -> None:
        while True:
            await link.request()
            await link.send(b"HTTP/1.1 %d X\r\nContent-Length: 5\r\n\r\n" % status)

    up = await upstream(script)
    pool = up.pool()
    for _ in range(3):
        response, body = await get(pool)
        assert (response.status, body) == (status, b"")
    assert len(up.links) == 1
    pool.close()


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
async def test_an_answer_to_head_has_no_body(upstream: StartUpstream, framing: bytes):
    async def script(link: Link) -> None:
        while True:
            await link.request()
            if link.heads[-1].startswith(b"HEAD"):
                await link.send(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)
            else:
                await link.send(OK)

    up = await upstream(script)
    pool = up.pool()
    for method, expected in (("HEAD", b""), ("GET", b"hello"), ("HEAD", b""), ("HEAD", b"")):
        assert (await get(pool, method))[1] == expected
    assert len(up.links) == 1
    pool.close()


async def test_a_body_after_an_answer_to_head_spoils_the_connection(upstream: StartUpstream):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(OK)
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    for index in range(3):
        assert (await get(pool, "HEAD"))[1] == b""
        assert len(up.links) == index + 1
    await up.deserted()
    pool.close()


HEAD_200 = b"HTTP/1.1 200 OK\r\n"

MALFORMED = [
    b"nonsense\r\n\r\n",
    b"\x16\x03\x01",
    b"HTTP/1.1 2000 OK\r\n\r\n",
    b"HTTP/1.1 000 OK\r\n\r\n",
    b"HTTP/1.1 099 OK\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    # framing that another reader could take differently
    HEAD_200 + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    HEAD_200 + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    HEAD_200 + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    HEAD_200 + b"Content-Length: +5\r\n\r\nhello",
    HEAD_200 + b"Content-Length : 5\r\n\r\nhello",
    HEAD_200 + b"X: a\r\n b\r\n\r\n",
    HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    # more than anybody sends
    HEAD_200 + b"X: y\r\n" * 1000 + b"\r\n",
    HEAD_200 + b"X: " + b"y" * 200_000,
    HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 200_000,
    HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 200_000,
    HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 200_000,
]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:60]))
async def test_an_answer_that_is_not_http_is_malformed(upstream: StartUpstream, data: bytes):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(data)
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    with pytest.raises(UpstreamMalformed):
        await get(pool)
    await up.deserted()
    pool.close()


@pytest.mark.parametrize(
    "extra",
    [
        b"H", b"\x00", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen",
    ],
)  # fmt: skip
@pytest.mark.parametrize("later", [False, True])
async def test_bytes_that_nobody_asked_for_never_become_an_answer(
    upstream: StartUpstream, extra: bytes, later: bool
):
    async def script(link: Link) -> None:
        await link.request()
        if link.index:
            await link.send(OK)
        elif later:
            await link.send(OK)
            await asyncio.sleep(0.01)
            await link.send(extra)
        else:
            await link.send(OK + extra)
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    assert (await get(pool))[1] == b"hello"
    await eventually(lambda: not pool._idle)
    assert (await get(pool))[1] == b"hello"
    assert len(up.links) == 2
    pool.close()


async def test_an_answer_larger_than_the_reader_wants_is_given_up(upstream: StartUpstream):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    response = await pool.fetch("GET", "/", b"")
    with pytest.raises(UpstreamMalformed, match="larger than 999 bytes"):
        await response.read(999)
    await up.deserted()
    pool.close()


BODIES = st.lists(st.binary(max_size=40), max_size=6)


@given(BODIES, st.booleans(), st.lists(st.integers(1, 60), min_size=1, max_size=6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_any_body_arrives_as_it_was_sent(
    upstream: StartUpstream, pieces: list[bytes], chunked: bool, cuts: list[int]
):
    body = b"".join(pieces)
    if chunked:
        data = HEAD_200 + b"Transfer-Encoding: chunked\r\n\r\n"
        data += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
        data += b"0\r\n\r\n"
    else:
        data = HEAD_200 + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    async def script(link: Link) -> None:
        rest = data
        await link.request()
        for cut in cuts:
            piece, rest = rest[:cut], rest[cut:]
            await link.send(piece)
            await asyncio.sleep(0)
        await link.send(rest)

    up = await upstream(script)
    pool = up.pool()
    assert (await get(pool))[1] == body
    pool.close()
    await up.close()


FRAGMENTS = [
    HEAD_200, b"HTTP/1.1 100 C\r\n\r\n", b"HTTP/1.1 204 N\r\n\r\n", b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"\r\n", b"hello",
    b"5\r\nhello\r\n", b"0\r\n\r\n", b"X: y\r\n", b"\n", b"\0", OK, CHUNKED,
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS) | st.binary(max_size=5), max_size=10).map(b"".join))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_any_bytes_are_an_answer_or_a_failure(upstream: StartUpstream, data: bytes):
    async def script(link: Link) -> None:
        await link.request()
        if link.index:
            await link.send(OK)
        else:
            await link.send(data)

    up = await upstream(script)
    pool = up.pool()
    try:
        response, _ = await get(pool)
        assert response.complete
        assert response.status >= 200
    except UpstreamFailure:
        pass
    assert (await get(pool))[1] == b"hello"
    pool.close()
    await up.close()


async def test_header_names_are_found_in_any_case(upstream: StartUpstream):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(b"HTTP/1.1 429 X\r\nReTRY-after: 3\r\nContent-Length: 0\r\n\r\n")

    pool = (await upstream(script)).pool()
    response, _ = await get(pool)
    assert response.header(b"retry-after") == b"3"
    assert response.header(b"x-none") is None
    pool.close()


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/ HTTP/1.1\r\nX: y", b""),
        ("GET", "/a b", b""),
        ("GET", "/a\n", b""),
        ("GET", "/ü", b""),
        ("GET /", "/", b""),
        ("get", "/", b""),
        ("GET", "/", b"x: y"),
        ("GET", "/", b"x: y\n"),
        ("GET", "/", b"x: y\r\n\r\n"),
        ("GET", "/", b"\r\nx: y\r\n"),
        ("GET", "/", b"x: a\rb\r\n"),
        ("GET", "/", b"x: a\nb\r\n"),
        ("GET", "/", b"x: a\0b\r\n"),
    ],
)
async def test_no_path_or_header_can_break_a_request_up(
    upstream: StartUpstream, method: str, path: str, headers: bytes
):
    up = await upstream(serve_forever)
    pool = up.pool()
    with pytest.raises(ValueError, match=r"not a request|CRLF"):
        await pool.fetch(method, path, b"", headers=headers)
    assert not up.heads
    pool.close()
