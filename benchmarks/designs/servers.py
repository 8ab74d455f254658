"""Three server halves. `python -m benchmarks.designs.servers SERVER CLIENT UPSTREAM PORT`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import uvloop

from benchmarks.designs.clients import make_client
from benchmarks.designs.handler import Gateway
from prime_inference.wire import http
from prime_inference.wire.http_server import HttpServer

MODEL = "mock/plain"


# -- ours


class OurReply:
    """`wire.http.Reply`, awaited as the other servers' are."""

    def __init__(self, reply: http.Reply) -> None:
        self._reply = reply

    async def send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self._reply.send(status, _encoded(headers), body)

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self._reply.start(status, _encoded(headers))

    async def write(self, data: bytes) -> None:
        self._reply.write(data)
        if self._reply.congested:
            await self._reply.drained()

    async def end(self) -> None:
        self._reply.end()


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]


async def serve_ours(client: str, upstream: str, port: int) -> None:
    gateway = Gateway(make_client(client, upstream), MODEL)

    async def handle(request: http.Request, reply: http.Reply) -> None:
        if request.method == "GET":
            reply.send(200, [], b"")
            return
        authorization = (request.header(b"authorization") or b"").decode("latin-1")
        await gateway.handle(authorization, request.body, OurReply(reply))

    server = HttpServer(handle, lambda error: (error.status, [], b"{}"))
    await server.start("127.0.0.1", port)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.close()


# -- uvicorn


class AsgiReply:
    def __init__(self, send: Any) -> None:
        self._send = send

    async def send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        length = [("content-length", str(len(body)))]
        await self.start(status, headers + length)
        await self._send({"type": "http.response.body", "body": body})

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        start = {"type": "http.response.start", "status": status, "headers": _encoded(headers)}
        await self._send(start)

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})


class AsgiApp:
    """An ASGI application without a framework."""

    def __init__(self, client: str, upstream: str) -> None:
        self._settings = (client, upstream)
        self._gateway: Gateway | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self._gateway is None:
            self._gateway = Gateway(make_client(*self._settings), MODEL)
        reply = AsgiReply(send)
        if scope["method"] == "GET":
            await reply.send(200, [], b"")
            return
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        authorization = next((v for n, v in scope["headers"] if n == b"authorization"), b"")
        await self._gateway.handle(authorization.decode("latin-1"), body, reply)


def serve_uvicorn(client: str, upstream: str, port: int) -> None:
    import uvicorn

    uvicorn.run(
        AsgiApp(client, upstream), host="127.0.0.1", port=port, loop="uvloop", http="httptools",
        lifespan="off", log_level="error", access_log=False, backlog=4096,
    )  # fmt: skip


# -- granian


class RsgiReply:
    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._stream: Any = None

    async def send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self._protocol.response_bytes(status, headers, body)

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None:
        self._stream = self._protocol.response_stream(status, headers)

    async def write(self, data: bytes) -> None:
        await self._stream.send_bytes(data)

    async def end(self) -> None:
        pass


class RsgiApp:
    """An RSGI application; granian imports it in its worker, settings come by environment."""

    def __init__(self) -> None:
        self._gateway: Gateway | None = None

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        if self._gateway is None:
            client = make_client(os.environ["DESIGN_CLIENT"], os.environ["DESIGN_UPSTREAM"])
            self._gateway = Gateway(client, MODEL)
        reply = RsgiReply(protocol)
        if scope.method == "GET":
            await reply.send(200, [], b"")
            return
        authorization = scope.headers.get("authorization") or ""
        await self._gateway.handle(authorization, await protocol(), reply)


rsgi_app = RsgiApp()


def serve_granian(client: str, upstream: str, port: int) -> None:
    import granian
    from granian.constants import Interfaces, Loops

    os.environ["DESIGN_CLIENT"] = client
    os.environ["DESIGN_UPSTREAM"] = upstream
    granian.Granian(
        "benchmarks.designs.servers:rsgi_app", address="127.0.0.1", port=port, workers=1,
        interface=Interfaces.RSGI, loop=Loops.uvloop, log_enabled=False, backlog=4096,
    ).serve()  # fmt: skip


def main(server: str, client: str, upstream: str, port: str) -> None:
    if server == "ours":
        uvloop.run(serve_ours(client, upstream, int(port)))
    elif server == "uvicorn":
        serve_uvicorn(client, upstream, int(port))
    else:
        serve_granian(client, upstream, int(port))


if __name__ == "__main__":
    main(*sys.argv[1:])
