"""Listening, draining and stopping; many connections at once."""

import asyncio
import resource
import select
import socket
from pathlib import Path

import pytest

from prime_inference.wire.http import Reply, Request
from prime_inference.wire.http_server import BACKLOG
from tests.wire.peer import GET, PATIENCE, Connect, Serve, echo, eventually, post


class Held:
    """A handler that answers when told to."""

    def __init__(self, streamed: bool = False) -> None:
        self.streamed = streamed
        self.go = asyncio.Event()
        self.began = 0
        self.cancelled = 0

    async def __call__(self, request: Request, reply: Reply) -> None:
        self.began += 1
        if self.streamed:
            reply.start(200, [])
            reply.write(b"first,")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.streamed:
            reply.write(b"last")
            reply.end()
        else:
            reply.send(200, [], request.body)


async def test_draining_finishes_what_is_in_flight_and_refuses_what_is_new(
    serve: Serve, connect: Connect
):
    handler = Held()
    server, address = await serve(handler)
    idle, busy, fresh = [await connect(address) for _ in range(3)]
    handler.go.set()
    await idle.ask(GET)
    handler.go.clear()
    await busy.send(post(b"mine"))
    await eventually(lambda: handler.began == 2)

    draining = asyncio.create_task(server.drain(PATIENCE))
    assert await idle.ended()
    assert await fresh.ended()
    with pytest.raises(ConnectionRefusedError):
        await connect(address)
    assert not draining.done()

    handler.go.set()
    answer = await busy.answer()
    assert (answer.status, answer.body) == (200, b"mine")
    assert answer.field("connection") == "close"
    assert await busy.ended()
    await asyncio.wait_for(draining, 1)
    assert not server.connections


async def test_a_connection_made_before_a_drain_may_still_send_its_first_request(
    serve: Serve, connect: Connect
):
    server, address = await serve(echo)
    taken = await connect(address)
    await eventually(lambda: len(server.connections) == 1)
    # the kernel has taken this one, the server has not been told yet
    with socket.create_connection(address) as waiting:
        draining = asyncio.create_task(server.drain(PATIENCE))
        await asyncio.sleep(0)
        assert (await taken.ask(post(b"mine"))).body == b"mine"
        waiting.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(waiting, post(b"too"))
        answer = await loop.sock_recv(waiting, 65536)
        assert answer.startswith(b"HTTP/1.1 200")
        await asyncio.wait_for(draining, PATIENCE)


async def test_a_stream_that_began_before_the_drain_ends_whole_and_then_closes(
    serve: Serve, connect: Connect
):
    handler = Held(streamed=True)
    server, address = await serve(handler)
    peer = await connect(address)
    await peer.send(GET)
    await eventually(lambda: handler.began == 1)
    draining = asyncio.create_task(server.drain(PATIENCE))
    await asyncio.sleep(0.02)
    handler.go.set()
    assert (await peer.answer()).body == b"first,last"
    assert await peer.ended()
    await asyncio.wait_for(draining, 1)


async def test_draining_answers_what_was_pipelined_and_what_was_half_sent(
    serve: Serve, connect: Connect
):
    handler = Held()
    server, address = await serve(handler)
    pipelined, half_sent = await connect(address), await connect(address)
    await pipelined.send(post(b"one") + post(b"two"))
    await half_sent.send(post(b"three")[:-2])
    await eventually(lambda: handler.began == 1 and len(server.connections) == 2)
    await asyncio.sleep(0.02)
    draining = asyncio.create_task(server.drain(PATIENCE))
    handler.go.set()
    answers = [await pipelined.answer() for _ in range(2)]
    assert [x.body for x in answers] == [b"one", b"two"]
    assert [x.field("connection") for x in answers] == [None, "close"]
    assert (await half_sent.ask(b"ee")).body == b"three"
    await asyncio.wait_for(draining, 1)


async def test_draining_waits_for_answers_to_be_read(serve: Serve, connect: Connect):
    async def large(request: Request, reply: Reply) -> None:
        reply.send(200, [], b"x" * 12_000_000)

    server, address = await serve(large)
    peer = await connect(address, receive_buffer=100_000)
    await peer.send(GET)
    await peer.reader.readuntil(b"\r\n\r\n")
    draining = asyncio.create_task(server.drain(PATIENCE))
    await asyncio.sleep(0.02)
    assert await peer.read(12_000_000) == b"x" * 12_000_000
    await asyncio.wait_for(draining, 1)


@pytest.mark.parametrize("stops", [True, False], ids=["the server stops", "the client leaves"])
async def test_a_cancelled_handler_can_tell_why(serve: Serve, connect: Connect, stops: bool):
    told = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def handler(request: Request, reply: Reply) -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            told.set_result(reply.server_stops)
            raise

    server, address = await serve(handler)
    peer = await connect(address)
    await peer.send(GET)
    await asyncio.wait_for(began.wait(), PATIENCE)
    draining = asyncio.create_task(server.drain(PATIENCE))
    await asyncio.sleep(0)
    if stops:
        await server.close()
    else:  # while it drains
        peer.abort()
    assert await asyncio.wait_for(told, PATIENCE) is stops
    await draining


async def test_draining_gives_up_in_time(serve: Serve, connect: Connect):
    handler = Held()
    server, address = await serve(handler)
    peer = await connect(address)
    await peer.send(GET)
    await eventually(lambda: handler.began == 1)
    await asyncio.wait_for(server.drain(0.05), PATIENCE)
    assert handler.cancelled == 1
    assert (await peer.answer()).status == 503
    assert await peer.ended()


async def test_who_is_served_when_the_time_is_over_is_told(serve: Serve, connect: Connect):
    handler = Held()
    server, address = await serve(handler)
    served, pipelined, idle = [await connect(address) for _ in range(3)]
    await served.send(GET)
    await pipelined.send(post(b"one") + post(b"two"))
    await eventually(lambda: handler.began == 2 and len(server.connections) == 3)
    closing = asyncio.create_task(server.close())
    for peer in (served, pipelined):
        answer = await peer.answer()
        assert answer.status == 503
        assert answer.field("connection") == "close"
        assert await peer.ended()  # what was sent after it is not served
    assert await idle.ended()
    await asyncio.wait_for(closing, PATIENCE)
    assert handler.began == 2


async def test_a_second_stop_ends_a_drain_at_once(serve: Serve, connect: Connect):
    handler = Held()
    server, address = await serve(handler)
    peer = await connect(address)
    await peer.send(GET)
    await eventually(lambda: handler.began == 1)
    draining = asyncio.create_task(server.drain(60))
    await asyncio.sleep(0.02)
    await asyncio.wait_for(server.close(), 1)
    await asyncio.wait_for(draining, 1)
    assert handler.cancelled == 1
    assert (await peer.answer()).status == 503
    assert await peer.ended()


async def test_closing_waits_for_handlers_to_clean_up(serve: Serve, connect: Connect):
    cleaned = asyncio.Event()
    began = asyncio.Event()

    async def careful(request: Request, reply: Reply) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.set()

    server, address = await serve(careful)
    peer = await connect(address)
    await peer.send(GET)
    await began.wait()
    await server.close()
    assert cleaned.is_set()


async def test_a_server_can_be_closed_twice_and_unused(serve: Serve):
    server, _ = await serve(echo)
    await server.drain(0)
    await server.drain(1)
    await server.close()


async def test_a_thousand_connections_are_served_at_once(serve: Serve, connect: Connect):
    """All of them are in flight together, and each gets its own answer."""
    count = 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * count + 200
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"only {hard} open files are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    handler = Held()
    server, address = await serve(handler)
    peers = [await connect(address) for _ in range(count)]
    for index, peer in enumerate(peers):
        await peer.send(post(b"%d" % index))
    await eventually(lambda: handler.began == count)
    assert server.in_flight == count
    handler.go.set()
    for index, peer in enumerate(peers):
        assert (await peer.answer()).body == b"%d" % index
    handler.go.clear()
    for peer in peers:
        await peer.send(GET)
        peer.abort()
    await eventually(lambda: not server.connections)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def kernel_backlog() -> int:
    somaxconn = Path("/proc/sys/net/core/somaxconn")
    return int(somaxconn.read_text()) if somaxconn.exists() else 128  # of macOS


async def test_a_burst_of_connections_fits_the_backlog(serve: Serve):
    """While the loop is busy nothing is accepted: the kernel has to hold them all."""
    burst = 500
    assert burst < BACKLOG
    if kernel_backlog() < burst:
        pytest.skip("the kernel's own limit is lower")
    _, address = await serve(echo)
    sockets = []
    for _ in range(burst):  # the loop gets no turn
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address)
        sockets.append(sock)
    poll = select.poll()
    for sock in sockets:
        poll.register(sock, select.POLLOUT)
    connected = [event for _, event in poll.poll(100) if not event & select.POLLERR]
    for sock in sockets:
        sock.close()
    assert len(connected) == burst
    await asyncio.sleep(0.05)


async def test_ipv6_is_served(serve: Serve, connect: Connect):
    clients: list[str] = []

    async def keep(request: Request, reply: Reply) -> None:
        clients.append(request.client)
        reply.send(200, [], b"")

    try:
        _, address = await serve(keep, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    peer = await connect(address)
    assert (await peer.ask(GET)).status == 200
    assert clients == ["::1"]


async def test_a_taken_port_is_an_os_error(serve: Serve):
    server, (_, port) = await serve(echo)
    other = type(server)(echo, lambda error: (500, [], b""))
    with pytest.raises(OSError, match="in use"):
        await other.start("127.0.0.1", port)
    await other.close()


async def test_answers_are_not_delayed_to_fill_packets(serve: Serve, connect: Connect):
    server, address = await serve(echo)
    peer = await connect(address)
    await peer.ask(GET)
    (connection,) = server.connections
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
