"""Clients that leave, and handlers that learn of it."""

import asyncio
import socket

import pytest

from prime_inference.wire.http import Reply, Request
from tests.wire.peer import GET, Connect, Peer, Serve, echo, eventually, post


class Witness:
    """A handler that waits, and knows how it ended."""

    def __init__(self, streamed: bool = False) -> None:
        self.streamed = streamed
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.cancellations = 0

    async def __call__(self, request: Request, reply: Reply) -> None:
        if self.streamed:
            reply.start(200, [])
            reply.write(b"first")
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancellations += 1
            self.cancelled.set()
            reply.send(200, [], b"nobody hears this")
            await self._clean_up()
            raise

    async def _clean_up(self) -> None:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.cancellations += 1


def leave_by_closing(peer: Peer) -> None:
    peer.writer.close()


def leave_by_reset(peer: Peer) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.abort()


def leave_by_half_closing(peer: Peer) -> None:
    peer.half_close()


LEAVE = [leave_by_closing, leave_by_reset, leave_by_half_closing]


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "more", [b"", GET, GET * 5 + b"GET / HTT", GET * 1000, b"nonsense\r\n\r\n"]
)
async def test_a_client_that_leaves_cancels_the_handler_once(
    serve: Serve, connect: Connect, leave, streamed: bool, more: bytes
):
    handler = Witness(streamed)
    server, address = await serve(handler)
    peer = await connect(address)
    await peer.send(GET + more)
    await eventually(handler.began.is_set)
    await asyncio.sleep(0.01)
    assert not handler.cancelled.is_set()
    leave(peer)
    await asyncio.wait_for(handler.cancelled.wait(), 1)
    await eventually(lambda: not server.connections)
    assert handler.cancellations == 1


async def test_a_half_closed_client_that_does_not_read_is_gone_at_once(
    serve: Serve, connect: Connect
):
    """What is still to be written must not hold up the news that nobody waits for it."""
    cancelled = asyncio.Event()

    async def flood(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        try:
            while True:
                reply.write(b"x" * 50_000)
                await (reply.drained() if reply.congested else asyncio.sleep(0))
        finally:
            cancelled.set()

    _, address = await serve(flood)
    peer = await connect(address, receive_buffer=20_000)
    await peer.send(GET)
    await asyncio.sleep(0.1)
    peer.half_close()
    await asyncio.wait_for(cancelled.wait(), 1)


async def test_a_client_that_half_closes_while_it_reads_its_answer_gets_all_of_it(
    serve: Serve, connect: Connect
):
    async def large(request: Request, reply: Reply) -> None:
        reply.send(200, [], b"x" * 8_000_000)

    server, address = await serve(large)
    peer = await connect(address, receive_buffer=100_000)
    await peer.send(GET)
    await peer.reader.readuntil(b"\r\n\r\n")
    peer.half_close()
    assert await peer.read(8_000_000) == b"x" * 8_000_000
    assert await peer.ended()
    await eventually(lambda: not server.connections)


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("part", [b"", b"GE", b"GET / HTTP/1.1\r\nHo", post(b"hello")[:-1]])
async def test_a_client_that_leaves_before_its_request_is_whole_is_forgotten(
    serve: Serve, connect: Connect, leave, part: bytes
):
    handler = Witness()
    server, address = await serve(handler)
    peer = await connect(address)
    await peer.send(part)
    await eventually(lambda: len(server.connections) == 1)
    leave(peer)
    await eventually(lambda: not server.connections)
    assert not handler.began.is_set()


async def test_a_client_that_leaves_with_its_answer_does_not_cancel_what_comes_after_it(
    serve: Serve, connect: Connect
):
    settled = asyncio.Event()
    left = asyncio.Event()

    async def settle(request: Request, reply: Reply) -> None:
        reply.send(200, [], b"")
        await left.wait()
        await asyncio.sleep(0.02)
        settled.set()

    server, address = await serve(settle)
    peer = await connect(address)
    await peer.ask(GET)
    leave_by_reset(peer)
    await asyncio.sleep(0.02)
    assert server.in_flight == 1
    left.set()
    await asyncio.wait_for(settled.wait(), 1)
    await eventually(lambda: not server.connections)


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_handler_that_aborts_is_not_cancelled_itself(
    serve: Serve, connect: Connect, streamed: bool
):
    settled = asyncio.Event()

    async def give_up(request: Request, reply: Reply) -> None:
        if streamed:
            reply.start(200, [])
            reply.write(b"half")
        reply.abort()
        reply.abort()
        reply.write(b"more")
        reply.end()
        assert not reply.congested
        await reply.drained()
        await asyncio.sleep(0.02)
        settled.set()

    server, address = await serve(give_up)
    peer = await connect(address)
    await peer.send(GET)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await peer.answer()
    await asyncio.wait_for(settled.wait(), 1)
    await eventually(lambda: not server.connections)


async def test_a_handler_that_ignores_its_cancellation_harms_nobody(serve: Serve, connect: Connect):
    go = asyncio.Event()

    async def stubborn(request: Request, reply: Reply) -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                assert not reply.congested
                reply.send(200, [], b"late")

    server, address = await serve(stubborn)
    peer = await connect(address)
    await peer.send(GET)
    await eventually(lambda: server.in_flight == 1)
    peer.abort()
    await asyncio.sleep(0.02)
    assert server.in_flight == 1
    go.set()
    await eventually(lambda: server.in_flight == 0 and not server.connections)


async def test_a_cancelled_wait_for_the_client_does_not_end_the_wait_of_others(
    serve: Serve, connect: Connect
):
    waited = asyncio.Event()

    async def two_writers(request: Request, reply: Reply) -> None:
        reply.start(200, [])
        while not reply.congested:
            reply.write(b"x" * 100_000)
        other = asyncio.create_task(reply.drained())
        await asyncio.sleep(0)
        other.cancel()
        await reply.drained()
        waited.set()
        reply.end()

    _, address = await serve(two_writers)
    peer = await connect(address, receive_buffer=20_000)
    await peer.send(GET)
    await asyncio.sleep(0.05)
    assert not waited.is_set()
    await peer.answer()
    assert waited.is_set()


async def test_no_connection_is_left_behind_by_clients_that_come_and_go(
    serve: Serve, connect: Connect
):
    """Among them are some that leave before their handler's task has had its first turn."""
    server, address = await serve(echo)
    peers = [await connect(address) for _ in range(100)]
    for index, peer in enumerate(peers):
        await peer.send((GET * (index % 3))[: 10 + index])
        LEAVE[index % 2](peer)
    await eventually(lambda: not server.connections)
    assert server.in_flight == 0


async def test_an_external_cancellation_of_the_handler_breaks_its_connection(
    serve: Serve, connect: Connect
):
    async def wait(request: Request, reply: Reply) -> None:
        await asyncio.Event().wait()

    server, address = await serve(wait)
    peer = await connect(address)
    await peer.send(GET)
    await eventually(lambda: server.in_flight == 1)
    await asyncio.sleep(0.01)
    (connection,) = server.connections
    assert connection.task is not None
    connection.task.cancel()
    assert await peer.ended()
