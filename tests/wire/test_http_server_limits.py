"""What a client may make the server hold, read or wait for."""

import asyncio
import socket
import tracemalloc
from contextlib import suppress
from math import inf

import pytest

from prime_inference.wire.http import Reply, Request
from prime_inference.wire.http_connection import Connection
from tests.wire.peer import GET, HOST, Connect, Peer, Serve, echo, eventually, post, settled

FOREVER = 60.0  # seconds; a limit that a test must never meet


def get(*fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"GET / HTTP/1.1\r\n" + HOST + lines + b"\r\n"


async def test_a_head_at_its_limits_is_served_and_one_above_refused(serve: Serve, connect: Connect):
    limits = {"header_count": 5, "header_bytes": 500, "url_bytes": 50}
    _, address = await serve(echo, **limits)
    name_and_value = len(b"x: \r\n") + len(b"Host: a\r\n")
    cases = {
        get(*[b"x: y"] * 4): 200,
        get(*[b"x: y"] * 5): 431,
        get(b"x: " + b"y" * (500 - name_and_value)): 200,
        get(b"x: " + b"y" * (501 - name_and_value)): 431,
        b"GET /%b HTTP/1.1\r\n%b\r\n" % (b"p" * 49, HOST): 200,
        b"GET /%b HTTP/1.1\r\n%b\r\n" % (b"p" * 50, HOST): 414,
    }
    for request, status in cases.items():
        for size in (len(request), 7):
            peer = await connect(address)
            for start in range(0, len(request), size):
                await peer.send(request[start : start + size])
                await asyncio.sleep(0)
            answer = await peer.answer()
            assert answer.status == status, request
            assert answer.field("connection") == (None if status == 200 else "close")


CHUNKED = post(b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
TRAILER = CHUNKED + b"1\r\na\r\n0\r\nX: "
ENDLESS = {
    "a header's value": (b"GET / HTTP/1.1\r\nX: ", 431),
    "a header's name": (b"GET / HTTP/1.1\r\nX", 431),
    "a chunk's extension": (CHUNKED + b"1;", 400),
    "a trailer's value": (TRAILER, 400),
    "the URL": (b"GET /", 414),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_nothing_endless_is_collected(serve: Serve, connect: Connect, what: str):
    """httptools joins the pieces of one field before it hands any of it over."""
    _, address = await serve(echo, header_bytes=10_000)
    peer = await connect(address)
    start, status = ENDLESS[what]
    await peer.send(start)
    tracemalloc.start()
    for _ in range(100):
        await peer.send(b"a" * 100_000)
        await asyncio.sleep(0)
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()
    assert (await peer.answer()).status == status


async def test_many_trailers_are_not_collected_either(serve: Serve, connect: Connect):
    _, address = await serve(echo, header_bytes=10_000)
    peer = await connect(address)
    await peer.send(TRAILER + b"a\r\n")
    for _ in range(100):
        await peer.send(b"Y: b\r\n" * 1000)
        await asyncio.sleep(0)
    assert (await peer.answer()).status == 400


async def test_blank_lines_before_a_request_are_not_endless(serve: Serve, connect: Connect):
    _, address = await serve(echo, header_bytes=1_000)
    peer = await connect(address)
    assert (await peer.ask(b"\r\n\r\n" + GET)).status == 200
    for _ in range(30):
        await peer.send(b"\r\n" * 50)
        await asyncio.sleep(0)
    assert (await peer.answer()).status == 400


async def test_a_body_at_the_limit_is_served_and_a_byte_more_refused(
    serve: Serve, connect: Connect
):
    _, address = await serve(echo, body_bytes=1000)
    peer = await connect(address)
    chunked = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    assert (await peer.ask(post(b"x" * 1000))).status == 200
    assert (
        await peer.ask(chunked + b"1f4\r\n%b\r\n" % (b"x" * 500) * 2 + b"0\r\n\r\n")
    ).status == 200
    assert (await peer.ask(post(b"x" * 1001))).status == 413
    peer = await connect(address)
    assert (
        await peer.ask(chunked + b"1f4\r\n%b\r\n" % (b"x" * 500) * 2 + b"1\r\nx\r\n")
    ).status == 413


async def test_a_declared_length_over_the_limit_is_refused_unread(serve: Serve, connect: Connect):
    _, address = await serve(echo, body_bytes=1000)
    for length in (1001, 2**63, 10**19):
        peer = await connect(address)
        answer = await peer.ask(
            b"POST / HTTP/1.1\r\n%bExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
            % (HOST, length)
        )
        assert answer.status == 413
        assert answer.field("connection") == "close"


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
async def test_a_client_that_goes_on_sending_can_read_its_refusal(
    serve: Serve, connect: Connect, framing: str
):
    _, address = await serve(echo, body_bytes=100_000)
    peer = await connect(address)
    size = 8_000_000
    if framing == "chunked":
        await peer.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    else:
        await peer.send(b"POST / HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, size))
    for _ in range(size // 80_000):
        piece = b"x" * 80_000
        await peer.send(b"%x\r\n%b\r\n" % (len(piece), piece) if framing == "chunked" else piece)
    answer = await peer.answer()
    assert (answer.status, answer.field("connection")) == (413, "close")
    assert await peer.ended()


async def test_a_client_that_ignores_its_refusal_is_cut_off(serve: Serve, connect: Connect):
    server, address = await serve(echo, body_bytes=1000, linger_seconds=0.1)
    peer = await connect(address)
    await peer.send(b"POST / HTTP/1.1\r\n%bContent-Length: 100000000\r\n\r\n" % HOST)
    with pytest.raises(ConnectionError):
        await _trickle(peer, b"x" * 1000)
    assert not server.connections


async def test_a_client_that_goes_on_after_its_last_request_can_read_its_answer(
    serve: Serve, connect: Connect
):
    async def slow(request: Request, reply: Reply) -> None:
        await asyncio.sleep(0.02)
        reply.send(200, [], b"hello")

    _, address = await serve(slow)
    peer = await connect(address)
    await peer.send(get(b"Connection: close"))
    for _ in range(20):
        await peer.send(b"x" * 100_000)
        await asyncio.sleep(0.005)
    assert (await peer.answer()).body == b"hello"
    assert await peer.ended()


async def test_a_body_in_tiny_chunks_costs_little_more_than_its_bytes(
    serve: Serve, connect: Connect
):
    _, address = await serve(echo)
    peer = await connect(address)
    await peer.send(b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    tracemalloc.start()
    for _ in range(100):
        await peer.send(b"2\r\nab\r\n" * 2000)
    await asyncio.sleep(0.05)
    assert tracemalloc.get_traced_memory()[0] < 4_000_000
    tracemalloc.stop()
    assert (await peer.ask(b"0\r\n\r\n")).body == b"ab" * 200_000


SLOW = {
    "no request": (b"", {"header_seconds": 0.1}),
    "a head": (b"GET / HTTP/1.1\r\nX: ", {"header_seconds": 0.1}),
    "a body": (post(b"hello")[:-2], {"body_seconds": 0.1}),
    "a chunked body": (
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n",
        {"body_seconds": 0.1},
    ),
    "a next request": (GET, {"idle_seconds": 0.1}),
    "a next head": (GET + b"GET / HTTP/1.1\r\nX: ", {"header_seconds": 0.1}),
    "a next body": (GET + post(b"hello")[:-2], {"body_seconds": 0.1}),
}


@pytest.mark.parametrize("what", SLOW)
async def test_a_client_that_is_slow_with_its_request_is_closed(
    serve: Serve, connect: Connect, what: str
):
    async def later(request: Request, reply: Reply) -> None:
        await asyncio.sleep(0.02)  # so that what follows is read while this is served
        reply.send(200, [], b"")

    start, limit = SLOW[what]
    limits = dict.fromkeys(("header_seconds", "body_seconds", "idle_seconds"), FOREVER) | limit
    server, address = await serve(later, **limits)
    peer = await connect(address)
    await peer.send(start)
    if start.startswith(GET):
        assert (await peer.answer()).status == 200
    trickle = asyncio.create_task(_trickle(peer, b"1\r\na\r\n" if "chunked" in what else b"a"))
    if what not in ("a head", "a chunked body", "a next head"):
        trickle.cancel()
    assert await peer.ended()
    trickle.cancel()
    assert not server.connections


async def _trickle(peer: Peer, piece: bytes) -> None:
    """Send a little, often: a limit is on the whole, not on the pause."""
    while True:
        await peer.send(piece)
        await asyncio.sleep(0.02)


async def test_the_time_a_handler_takes_is_not_limited_by_reading_limits(
    serve: Serve, connect: Connect
):
    async def slow(request: Request, reply: Reply) -> None:
        await asyncio.sleep(0.3)
        reply.send(200, [], b"")

    limits = dict.fromkeys(("header_seconds", "body_seconds", "idle_seconds"), 0.1)
    _, address = await serve(slow, **limits)
    peer = await connect(address)
    assert (await peer.ask(post(b"hello"))).status == 200


async def test_what_is_pipelined_is_bounded_in_number(serve: Serve, connect: Connect):
    go = asyncio.Event()

    async def held(request: Request, reply: Reply) -> None:
        await go.wait()
        reply.send(200, [], b"")

    server, address = await serve(held, pipelined_requests=4)
    peer = await connect(address)
    await peer.send(GET * 10_000)
    await eventually(lambda: any(connection._deaf for connection in server.connections))
    go.set()
    answers = [await peer.answer() for _ in range(6)]
    assert [x.status for x in answers] == [200] * 5 + [400]
    assert answers[-1].field("connection") == "close"
    assert await peer.ended()


async def test_what_is_pipelined_is_bounded_in_bytes(serve: Serve, connect: Connect):
    go = asyncio.Event()

    async def held(request: Request, reply: Reply) -> None:
        await go.wait()
        reply.send(200, [], b"")

    server, address = await serve(held, body_bytes=1000)
    peer = await connect(address)
    await peer.send(post(b"x" * 400) * 10)
    await eventually(lambda: any(connection._deaf for connection in server.connections))
    go.set()
    assert [(await peer.answer()).status for _ in range(4)] == [200, 200, 200, 400]


async def test_a_client_that_never_reads_cannot_make_answers_pile_up(
    serve: Serve, connect: Connect
):
    served = 0

    async def large(request: Request, reply: Reply) -> None:
        nonlocal served
        served += 1
        reply.send(200, [], b"x" * 500_000)

    server, address = await serve(large, write_seconds=0.2)
    peer = await connect(address, receive_buffer=20_000)
    with suppress(ConnectionError):  # when the limit on writing is met in the meantime
        for _ in range(100):  # one by one: none of them is pipelined behind another's handler
            await peer.send(GET)
            await asyncio.sleep(0.002)
    assert served < 30  # what the kernel takes, then the limit for one connection
    await eventually(lambda: not server.connections)


def narrow(reply: Reply) -> None:
    """Let the kernel hold little of an answer, whatever the machine's settings."""
    assert isinstance(reply, Connection)
    sock = reply._transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)


async def test_a_client_that_reads_slowly_is_waited_for(serve: Serve, connect: Connect):
    written = 0
    pieces = 100

    async def stream(request: Request, reply: Reply) -> None:
        nonlocal written
        narrow(reply)
        reply.start(200, [])
        for _ in range(pieces):
            reply.write(b"x" * 50_000)
            written += 50_000
            if reply.congested:
                await reply.drained()
        reply.end()

    _, address = await serve(stream, write_buffer_bytes=100_000)
    peer = await connect(address, receive_buffer=100_000)
    await peer.send(GET)
    await eventually(lambda: written > 0)
    assert await settled(lambda: written) < 1_000_000
    assert len((await peer.answer()).body) == 50_000 * pieces


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_stops_reading_is_cut_off_and_its_handler_cancelled(
    serve: Serve, connect: Connect, streamed: bool
):
    ended = asyncio.Event()

    async def answer(request: Request, reply: Reply) -> None:
        try:
            if not streamed:
                return reply.send(200, [], b"x" * 20_000_000)
            reply.start(200, [])
            while True:
                reply.write(b"x" * 50_000)
                await (reply.drained() if reply.congested else asyncio.sleep(0))
        finally:
            ended.set()

    server, address = await serve(answer, write_seconds=0.2)
    peer = await connect(address, receive_buffer=20_000)
    await peer.send(GET)
    await eventually(ended.is_set)
    await eventually(lambda: not server.connections)


@pytest.mark.parametrize("request_head", [GET, get(b"Connection: close")])
async def test_a_client_that_reads_slowly_is_given_more_time_and_one_that_stalls_is_not(
    serve: Serve, connect: Connect, request_head: bytes
):
    async def large(request: Request, reply: Reply) -> None:
        narrow(reply)
        reply.send(200, [], b"x" * 10_000_000)

    server, address = await serve(large, write_buffer_bytes=10_000)
    peer = await connect(address, receive_buffer=100_000)
    await peer.send(request_head)
    await peer.reader.readuntil(b"\r\n\r\n")
    (connection,) = server.connections
    for _ in range(5):
        unsent = await settled(connection._transport.get_write_buffer_size)
        while connection._transport.get_write_buffer_size() >= unsent:
            await peer.read(100_000)
        connection.expire()
    await settled(connection._transport.get_write_buffer_size)
    assert server.connections
    connection.expire()  # what the kernel still took was progress
    connection.expire()
    await eventually(lambda: not server.connections)


async def test_a_client_that_has_caught_up_is_under_no_writing_limit(
    serve: Serve, connect: Connect
):
    async def stream(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        while not reply.congested:
            reply.write(b"x" * 100_000)
        await reply.drained()
        await asyncio.sleep(0.3)  # the model thinks
        reply.write(b"last")
        reply.end()

    _, address = await serve(stream, write_seconds=0.1)
    peer = await connect(address)
    assert (await peer.ask(GET)).body.endswith(b"last")


async def test_each_part_of_an_exchange_has_its_own_limit(serve: Serve, connect: Connect):
    go = asyncio.Event()

    async def held(request: Request, reply: Reply) -> None:
        await go.wait()
        reply.send(200, [], b"")

    server, address = await serve(held, header_seconds=100, body_seconds=200, idle_seconds=300)
    peer = await connect(address)
    await eventually(lambda: len(server.connections) == 1)
    (connection,) = server.connections

    def left() -> float:
        return connection.deadline - asyncio.get_running_loop().time()

    for start in (90, 290):  # the first wait is for a head, later ones are idle
        assert start < left() <= start + 10
        await peer.send(post(b"hello")[:20])
        await eventually(lambda: 90 < left() <= 100)
        await peer.send(post(b"hello")[20:-1])
        await eventually(lambda: 190 < left() <= 200)
        await peer.send(b"o")
        await eventually(lambda: left() == inf)
        go.set()
        await peer.answer()
        go.clear()
