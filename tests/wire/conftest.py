"""Both event loops, and a guard against errors that a loop would only log."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator

import pytest
import uvloop

from prime_inference.wire.http_server import HttpServer, ServerLimits
from tests.wire.peer import Connect, Peer, Serve, render_error
from tests.wire.upstream import StartUpstream, Upstream


def pytest_asyncio_loop_factories():
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session", autouse=True)
def cheap_collections() -> Iterator[None]:
    """The modules' own objects are left out of the collection after every test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
async def quiet_loop() -> AsyncIterator[None]:
    """Fails the test if anything reached the loop's exception handler, or a task is left."""
    loop = asyncio.get_running_loop()
    problems: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    yield
    await asyncio.sleep(0)
    gc.collect()  # a task whose error nobody read reports it when it is collected
    assert not problems
    assert not asyncio.all_tasks() - {asyncio.current_task()}


@pytest.fixture
async def serve(quiet_loop: None) -> AsyncIterator[Serve]:
    """Starts servers: `await serve(handler, check_head=..., body_bytes=...)`."""
    servers: list[HttpServer] = []

    async def start(handler, check_head=None, host="127.0.0.1", **limits):
        server = HttpServer(
            handler, render_error, check_head=check_head, limits=ServerLimits(**limits)
        )
        servers.append(server)
        return server, await server.start(host, 0)

    yield start
    for server in servers:
        await server.close()
        assert not server.connections


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens raw connections: `await connect(address)`."""
    peers: list[Peer] = []

    async def open_peer(address, receive_buffer=0):
        peer = await Peer.connect(address, receive_buffer)
        peers.append(peer)
        return peer

    yield open_peer
    for peer in peers:
        await peer.close()


@pytest.fixture
async def upstream(quiet_loop: None) -> AsyncIterator[StartUpstream]:
    """Starts upstreams that follow a script: `await upstream(script)`."""
    upstreams: list[Upstream] = []

    async def start(script):
        upstream = await Upstream.start(script)
        upstreams.append(upstream)
        return upstream

    yield start
    for upstream in upstreams:
        await upstream.close()
