"""Connections of the pool: kept, repeated once, given up; none leaked, none half-used."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from prime_inference.domain.errors import (
    UpstreamCut,
    UpstreamFailure,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from prime_inference.wire.http import header_lines
from prime_inference.wire.http_client import HttpPool, Origin, Response
from tests.wire.peer import PATIENCE, eventually
from tests.wire.upstream import OK, Link, StartUpstream, Upstream, serve_forever

LIMIT = 1_000_000


async def ask(pool: HttpPool, body: bytes = b"") -> bytes:
    async with asyncio.timeout(PATIENCE):
        response = await pool.fetch("POST", "/x", body)
        try:
            return await response.read(LIMIT)
        finally:
            response.close()


async def test_a_request_is_written_as_told(upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool(headers=b"authorization: Bearer k\r\n")
    response = await pool.fetch("POST", "/x?y", b"{}", headers=header_lines([(b"x-a", b"1")]))
    assert await response.read(LIMIT) == b"hello"
    host, port = up.address
    assert up.heads == [
        b"POST /v1/x?y HTTP/1.1\r\nhost: %b:%d\r\nauthorization: Bearer k\r\nx-a: 1\r\n"
        b"content-length: 2\r\n\r\n" % (host.encode(), port)
    ]
    pool.close()


async def test_a_connection_is_used_again(upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool()
    for _ in range(5):
        assert await ask(pool) == b"hello"
    assert len(up.links) == 1
    pool.close()
    await up.deserted()


async def test_a_retired_pool_keeps_no_connection_and_breaks_none_in_use(upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool()
    await asyncio.gather(ask(pool), ask(pool))
    assert pool.connections == 2
    response = await pool.fetch("POST", "/x", b"")
    pool.retire()
    assert await response.read(LIMIT) == b"hello"
    response.close()
    await up.deserted()
    assert await ask(pool) == b"hello"  # a request that had chosen it before
    await up.deserted()
    assert pool.connections == 0


async def test_requests_at_once_have_connections_of_their_own_and_some_are_kept(
    upstream: StartUpstream,
):
    up = await upstream(serve_forever)
    pool = up.pool(idle=3)
    assert await asyncio.gather(*(ask(pool) for _ in range(10))) == [b"hello"] * 10
    assert len(up.links) == 10
    await eventually(lambda: up.open == 3)
    await asyncio.gather(*(ask(pool) for _ in range(3)))
    assert len(up.links) == 10
    pool.close()
    await up.deserted()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
    ],
)
async def test_a_connection_that_its_upstream_will_close_is_not_used_again(
    upstream: StartUpstream, answer: bytes
):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(answer)
        if b"ontent" not in answer:
            link.writer.close()
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    for count in range(1, 4):
        assert await ask(pool) == b"hello"
        assert len(up.links) == count
    await up.deserted()
    pool.close()


async def test_a_pool_that_keeps_nothing_tells_its_upstream(upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool(idle=0)
    for count in range(1, 3):
        assert await ask(pool) == b"hello"
        await up.deserted()
        assert len(up.links) == count
    assert all(b"\r\nconnection: close\r\n" in head for head in up.heads)


async def test_a_kept_connection_that_its_upstream_closed_is_forgotten(upstream: StartUpstream):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(OK)
        await asyncio.sleep(0.01)

    up = await upstream(script)
    pool = up.pool()
    await asyncio.gather(*(ask(pool) for _ in range(5)))
    await up.deserted()
    await eventually(lambda: not pool._idle and not pool._all)
    assert await ask(pool) == b"hello"
    pool.close()


@pytest.mark.parametrize("ending", ["closes", "resets"])
async def test_a_request_that_meets_a_closing_connection_is_sent_once_more_on_a_new_one(
    upstream: StartUpstream, ending: str
):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(OK)
        if link.index == 2:
            await link.end()
        await link.request()  # the close crosses the request
        if ending == "resets":
            link.reset()

    up = await upstream(script)
    pool = up.pool()
    await asyncio.gather(ask(pool, b"a"), ask(pool, b"b"))  # two are kept: both are stale
    seen: list[Response] = []
    response = await pool.fetch("POST", "/", b"c", watch=seen.append)
    assert await response.read(LIMIT) == b"hello"
    assert [x.reused for x in seen] == [True, False]
    assert (len(up.links), len(up.heads)) == (3, 4)
    assert len(pool._all) == 1
    pool.close()


@pytest.mark.parametrize("ending", ["closes", "resets"])
async def test_a_request_is_repeated_once_and_not_again(upstream: StartUpstream, ending: str):
    async def script(link: Link) -> None:
        if link.index == 0:
            await link.request()
            await link.send(OK)
        await link.request()
        if ending == "resets":
            link.reset()

    up = await upstream(script)
    pool = up.pool()
    await ask(pool)
    with pytest.raises(UpstreamUnreachable):
        await ask(pool)
    assert len(up.heads) == 3
    assert len(up.links) == 2
    with pytest.raises(UpstreamUnreachable):  # on a new connection: not even once
        await ask(pool)
    assert len(up.heads) == 4
    pool.close()


@pytest.mark.parametrize("first", [b"H", b"HTTP/1.1 2", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_a_request_is_not_repeated_once_a_byte_of_an_answer_has_come(
    upstream: StartUpstream, first: bytes
):
    async def script(link: Link) -> None:
        await link.request()
        await link.send(OK)
        await link.request()
        await link.send(first)

    up = await upstream(script)
    pool = up.pool()
    await ask(pool)
    with pytest.raises(UpstreamCut):
        await ask(pool)
    assert len(up.heads) == 2
    pool.close()


# -- giving up, in every state

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"
STATES = {
    "before a byte": b"",
    "in the head": HEAD[:-5],
    "after the head": HEAD,
    "in the body": HEAD + b"hello",
    "with much unread": HEAD.replace(b"100", b"10000000") + b"x" * 1_000_000,
}


async def in_state(up: Upstream, pool: HttpPool, sent: bytes) -> Response:
    response = await pool.send("POST", "/", b"x")
    await eventually(lambda: bool(up.heads))
    await eventually(lambda: bool(response.status) == (b"\r\n\r\n" in sent))
    return response


def stalls_after(sent: bytes):
    async def script(link: Link) -> None:
        await link.request()
        sending = asyncio.create_task(link.send(sent))
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            while not link.reader.at_eof():
                with suppress(ConnectionError):
                    await link.reader.read(1)
                if link.reader.exception():
                    break
        sending.cancel()

    return script


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", ["close", "fail", "pool.close"])
async def test_giving_up_closes_the_upstreams_connection_at_once(
    upstream: StartUpstream, state: str, way: str
):
    up = await upstream(stalls_after(STATES[state]))
    pool = up.pool()
    response = await in_state(up, pool, STATES[state])
    error = UpstreamTimeout("too slow", clock="total")
    if way == "close":
        response.close()
    elif way == "fail":
        response.fail(error)
        response.fail(UpstreamCut("the second does not count"))
    else:
        pool.close()
    await asyncio.wait_for(up.deserted(), 1)
    assert not pool._all
    assert not pool._idle
    with pytest.raises(UpstreamFailure) as caught:
        await response.read(10**9)
    assert (caught.value is error) == (way == "fail")
    assert not response.complete


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("way", ["close", "fail", "pool.close"])
async def test_giving_up_ends_the_wait_of_the_consumer(
    upstream: StartUpstream, state: str, way: str
):
    up = await upstream(stalls_after(STATES[state]))
    pool = up.pool()
    response = await in_state(up, pool, STATES[state])
    reading = asyncio.create_task(response.read(10**9))
    await asyncio.sleep(0.01)
    assert not reading.done()
    if way == "pool.close":
        pool.close()
    elif way == "close":
        response.close()
    else:
        response.fail(UpstreamTimeout("too slow", clock="idle"))
    with pytest.raises(UpstreamTimeout if way == "fail" else UpstreamCut):
        await asyncio.wait_for(reading, 1)
    await up.deserted()


async def test_giving_a_complete_answer_up_does_nothing(upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool()
    first = await pool.fetch("POST", "/", b"")
    assert await first.read(LIMIT) == b"hello"
    second = await pool.send("POST", "/", b"")
    first.close()
    first.fail(UpstreamCut("too late"))
    first.release()
    assert await second.read(LIMIT) == b"hello"
    assert len(up.links) == 1
    assert await first.chunk() == b""
    pool.close()


@pytest.mark.parametrize("state", STATES)
async def test_a_cancelled_fetch_leaves_no_connection(upstream: StartUpstream, state: str):
    up = await upstream(stalls_after(STATES[state]))
    pool = up.pool()

    async def whole() -> None:
        response = await pool.fetch("POST", "/", b"x")
        try:
            await response.read(10**9)
        finally:
            response.close()

    task = asyncio.create_task(whole())
    await eventually(lambda: bool(up.heads))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(up.deserted(), 1)
    assert not pool._all


async def test_a_request_cancelled_at_any_moment_leaves_no_connection_half_used(
    upstream: StartUpstream,
):
    """From the first step of connecting to the last byte of the answer."""
    up = await upstream(serve_forever)
    pool = up.pool()
    for warm in (False, True):
        for steps in range(40):
            if not warm:
                pool.drop_idle()
            task = asyncio.create_task(ask(pool, b"cancelled"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            assert len(pool._idle) <= 1
            assert set(pool._idle) >= {c for c in pool._all if c.alive}
            assert await ask(pool) == b"hello"
    pool.close()
    await up.deserted()


async def test_an_answer_is_released_before_its_last_byte(upstream: StartUpstream):
    go = asyncio.Event()

    async def script(link: Link) -> None:
        for _ in range(2):
            await link.request()
            await link.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await go.wait()
            await link.send(b"0\r\n\r\n")
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    response = await pool.fetch("POST", "/", b"")
    assert await response.chunk() == b"hello"
    response.release()
    assert not pool._idle
    go.set()
    await eventually(lambda: len(pool._idle) == 1)
    await ask(pool)
    assert len(up.links) == 1

    response = await pool.send("POST", "/", b"")
    response.release()
    await up.deserted()  # it never even began: given up a little later
    pool.close()


async def test_an_answer_that_overtakes_its_request_costs_the_connection(upstream: StartUpstream):
    """The rest of the request would be taken for the next one."""

    async def script(link: Link) -> None:
        await link.reader.readuntil(b"\r\n\r\n")
        await link.send(b"HTTP/1.1 413 X\r\nContent-Length: 5\r\n\r\nhello")
        await link.end()

    up = await upstream(script)
    pool = up.pool()
    for count in range(1, 3):
        assert await ask(pool, b"x" * 20_000_000) == b"hello"
        assert len(up.links) == count
    await up.deserted()
    pool.close()


# -- connecting


def open_sockets() -> int:
    if not Path("/proc/self/fd").exists():
        pytest.skip("only Linux lists the open files")
    return sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())


@contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that answers no SYN: a listener that accepts nothing, its backlog full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(5):
            filler = stack.enter_context(socket.socket())
            filler.settimeout(0.1)
            try:
                filler.connect(address)
            except TimeoutError:
                break
        else:
            pytest.skip("this kernel takes every connection")
        yield address


def pool_to(host: str, port: int) -> HttpPool:
    return HttpPool(Origin(host, port, ""))


async def test_a_refused_connection_is_unreachable(quiet_loop: None):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(UpstreamUnreachable):
        await ask(pool_to(*address))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 64 + ".invalid", "a..b"])
async def test_a_name_that_does_not_resolve_is_unreachable(quiet_loop: None, host: str):
    with pytest.raises(UpstreamUnreachable):
        await ask(pool_to(host, 80))


async def test_a_black_hole_is_a_timeout_of_the_connect_clock(quiet_loop: None):
    with black_hole() as address:
        before = open_sockets()
        pool = pool_to(*address)
        with pytest.raises(UpstreamTimeout) as caught:
            await pool.fetch("GET", "/", b"", connect_seconds=0.05)
        assert caught.value.clock == "connect"
        await eventually(lambda: open_sockets() == before)
        assert not pool._all


@pytest.mark.parametrize("way", ["cancel", "pool.close"])
async def test_giving_up_while_connecting_leaves_no_socket(quiet_loop: None, way: str):
    with black_hole() as address:
        before = open_sockets()
        pool = pool_to(*address)
        seconds = 60 if way == "cancel" else 0.5
        task = asyncio.create_task(pool.fetch("GET", "/", b"", connect_seconds=seconds))
        await asyncio.sleep(0.02)
        assert open_sockets() > before
        if way == "cancel":
            task.cancel()
        else:
            pool.close()
        with pytest.raises((asyncio.CancelledError, UpstreamTimeout)):
            await task
        await eventually(lambda: open_sockets() == before)


async def test_a_closed_pool_takes_no_connection_that_was_under_way(upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool()
    task = asyncio.create_task(ask(pool))
    await asyncio.sleep(0)
    pool.close()
    with pytest.raises(UpstreamFailure):
        await task
    with pytest.raises(UpstreamUnreachable):
        await ask(pool)
    await up.deserted()
    assert not pool._all


async def test_an_upstream_that_closes_what_it_accepts_is_unreachable(upstream: StartUpstream):
    """However early the close comes: even before the request is written."""

    async def script(link: Link) -> None:
        link.reset()

    up = await upstream(script)
    pool = up.pool()
    for _ in range(100):
        with pytest.raises(UpstreamUnreachable):
            await ask(pool)
    assert not pool._all
    assert not up.heads


async def test_requests_are_not_delayed_to_fill_packets(upstream: StartUpstream):
    pool = (await upstream(serve_forever)).pool()
    await ask(pool)
    (connection,) = pool._all
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    pool.close()


def test_an_origin_is_an_address_and_a_path():
    assert Origin.parse("http://h:81/a/b/") == Origin("h", 81, "/a/b")
    assert Origin.parse("http://h") == Origin("h", 80, "")
    origin = Origin.parse("http://[::1]:80/v1")
    assert (origin.host, origin.authority) == ("::1", "[::1]:80")


@pytest.mark.parametrize(
    "url",
    [
        "https://h", "h:80", "", "http://", "http://h?a", "http://h#a", "http://u:p@h",
        "http://h/a b", "http://h:99999", "http://h/\u00fc",
    ],
)  # fmt: skip
def test_an_odd_base_url_is_refused(url: str):
    with pytest.raises(ValueError):  # noqa: PT011
        Origin.parse(url)
