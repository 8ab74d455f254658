"""Backpressure between an upstream, the client and its consumer."""

import asyncio
from functools import partial

import pytest

from prime_inference.wire.http_exchange import READ_AHEAD_BYTES
from tests.wire.peer import PATIENCE, eventually, settled
from tests.wire.upstream import OK, Link, StartUpstream

SIZE = 20_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


async def test_a_slow_consumer_slows_the_upstream(upstream: StartUpstream):
    sent = 0

    async def script(link: Link) -> None:
        nonlocal sent
        await link.request()
        await link.send(HEAD % SIZE)
        while sent < SIZE:
            await link.send(b"x" * 50_000)
            sent += 50_000
        await link.end()

    pool = (await upstream(script)).pool()
    response = await pool.fetch("GET", "/", b"")
    assert await settled(lambda: sent) < SIZE * 0.8
    assert response._buffered <= READ_AHEAD_BYTES + 2**18  # one read of the loop beyond
    received = 0
    async with asyncio.timeout(PATIENCE):
        while data := await response.chunk():
            assert len(data) <= READ_AHEAD_BYTES + 2**18
            received += len(data)
    assert received == SIZE
    pool.close()


@pytest.mark.parametrize("consumer", ["closes", "reads late"])
async def test_an_answer_left_unread_does_not_hold_up_the_next_on_its_connection(
    upstream: StartUpstream, consumer: str
):
    """Its last bytes came in the read that filled the buffer: complete, and paused."""
    size = READ_AHEAD_BYTES + 1

    async def script(link: Link) -> None:
        while True:
            await link.request()
            await link.send(HEAD % size + b"x" * size)

    up = await upstream(script)
    pool = up.pool()
    for _ in range(5):
        first = await pool.fetch("GET", "/", b"")
        await eventually(partial(getattr, first, "complete"))
        if consumer == "closes":
            first.close()
        async with asyncio.timeout(PATIENCE):
            second = await pool.fetch("GET", "/", b"")
            assert len(await second.read(SIZE)) == size
        if consumer == "reads late":
            assert len(await first.read(SIZE)) == size
    assert len(up.links) == 1
    pool.close()


async def test_a_late_reader_does_not_undo_the_backpressure_of_another(upstream: StartUpstream):
    size = READ_AHEAD_BYTES + 1

    async def script(link: Link) -> None:
        await link.request()
        await link.send(HEAD % size + b"x" * size)
        await link.request()
        await link.send(HEAD % SIZE + b"x" * SIZE)

    up = await upstream(script)
    pool = up.pool()
    first = await pool.fetch("GET", "/", b"")
    await eventually(lambda: first.complete)
    second = await pool.fetch("GET", "/", b"")
    await eventually(lambda: second._buffered > READ_AHEAD_BYTES)
    await first.read(SIZE)
    await asyncio.sleep(0.1)
    assert second._buffered <= READ_AHEAD_BYTES + 2**18
    assert len(await second.read(SIZE)) == SIZE
    assert len(up.links) == 1
    pool.close()


async def test_a_large_request_reaches_a_slow_upstream_whole(upstream: StartUpstream):
    body = bytes(range(256)) * (SIZE // 256)
    received = []

    async def script(link: Link) -> None:
        await link.reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        left = len(body)
        while left:
            data = await link.reader.read(500_000)
            received.append(data)
            left -= len(data)
            await asyncio.sleep(0.001)
        await link.send(OK)
        await link.end()

    pool = (await upstream(script)).pool()
    async with asyncio.timeout(PATIENCE):
        response = await pool.fetch("POST", "/", body)
        assert await response.read(SIZE) == b"hello"
    assert b"".join(received) == body
    assert len(pool._idle) == 1
    pool.close()


async def test_a_stream_is_handed_over_as_it_comes(upstream: StartUpstream):
    go = asyncio.Event()

    async def script(link: Link) -> None:
        await link.request()
        await link.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for index in range(20):
            await go.wait()
            go.clear()
            await link.send(b"2\r\n%02d\r\n" % index)
        await link.send(b"0\r\n\r\n")

    pool = (await upstream(script)).pool()
    response = await pool.fetch("GET", "/", b"")
    async with asyncio.timeout(PATIENCE):
        for index in range(20):
            go.set()
            assert await response.chunk() == b"%02d" % index
        assert await response.chunk() == b""
    assert response.complete
    pool.close()
