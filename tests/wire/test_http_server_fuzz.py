"""Whatever a client sends, the server neither breaks nor waits for ever."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.wire.http_server import ServerLimits
from tests.wire.peer import Connect, Serve, echo, eventually, post
from tests.wire.test_http_reader import STREAMS

LIMITS = {"body_bytes": 1000, "header_seconds": 0.2, "body_seconds": 0.2, "idle_seconds": 0.2}


@given(
    st.lists(STREAMS, min_size=1, max_size=4), st.sampled_from(["waits", "half-closes", "leaves"])
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
async def test_any_bytes_are_answered_or_refused_and_the_connection_ends(
    serve: Serve, connect: Connect, pieces: list[bytes], ending: str
):
    """The fixtures see to it that no error reached the event loop and no task is left."""
    server, address = await serve(echo, **LIMITS)
    peer = await connect(address)
    try:
        for piece in pieces:
            await peer.send(piece)
        if ending == "leaves":
            peer.abort()
        elif ending == "half-closes":
            peer.half_close()
        data = await peer.rest()
    except ConnectionError:
        data = b""
    await peer.close()
    assert not data or data.startswith(b"HTTP/1.1 ")
    await eventually(lambda: not server.connections)
    server.limits = ServerLimits()
    healthy = await connect(address)
    assert (await healthy.ask(post(b"still here"))).body == b"still here"
    await server.close()


@pytest.mark.parametrize(
    "first", [b"\x16\x03\x01\x02\x00\x01\x00", b"SSH-2.0-x\r\n", b"\x00" * 100]
)
async def test_another_protocol_is_refused_at_once(serve: Serve, connect: Connect, first: bytes):
    _, address = await serve(echo)
    peer = await connect(address)
    assert (await peer.ask(first)).status == 501
    assert await peer.ended()
