"""The other side of a connection, byte by byte."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prime_inference.domain.errors import ApiError
from prime_inference.wire.http import Headers, Reply, Request
from prime_inference.wire.http_server import HttpServer

PATIENCE = 10.0  # seconds until a wait counts as a hang
HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"

Address = tuple[str, int]
Serve = Callable[..., Awaitable[tuple[HttpServer, Address]]]
Connect = Callable[..., Awaitable["Peer"]]


def render_error(error: ApiError) -> tuple[int, Headers, bytes]:
    return error.status, [(b"x-error", error.code.encode())], error.message.encode()


async def echo(request: Request, reply: Reply) -> None:
    """Answers with what was asked."""
    reply.send(
        200,
        [(b"x-method", request.method.encode()), (b"x-path", request.path.encode())],
        request.body,
    )


def post(body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"POST / HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n%b" % (HOST, lines, len(body), body)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so that tells nobody."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def settled(value: Callable[[], int]) -> int:
    """Wait until a number has stopped changing; returns it."""
    last, same = value(), 0
    async with asyncio.timeout(PATIENCE):
        while same < 10:
            await asyncio.sleep(0.01)
            same = same + 1 if value() == last else 0
            last = value()
    return last


@dataclass
class Answer:
    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def field(self, name: str) -> str | None:
        values = [value for key, value in self.fields if key.lower() == name]
        assert len(values) < 2, f"{name} came {len(values)} times"
        return values[0] if values else None


class Peer:
    """A raw TCP connection; every wait is bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: Address, receive_buffer: int = 0) -> Peer:
        """`receive_buffer`: bytes the kernel may hold for a peer that does not read."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError:
            sock.close()
            raise
        limit = receive_buffer or 2**16
        return cls(*await asyncio.open_connection(sock=sock, limit=limit))

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        async with asyncio.timeout(PATIENCE):
            await self.writer.drain()

    async def answer(self, *, to_head: bool = False) -> Answer:
        """Read one answer; raises IncompleteReadError where it is cut off."""
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            start, *lines = head.removesuffix("\r\n\r\n").split("\r\n")
            fields = [(name, value.strip()) for name, _, value in (x.partition(":") for x in lines)]
            answer = Answer(int(start.split()[1]), fields, b"")
            if not to_head and answer.status >= 200 and answer.status not in (204, 304):
                answer.body = await self._body(answer)
            return answer

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def read(self, count: int) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self.reader.readexactly(count)

    async def rest(self) -> bytes:
        """Everything until the other side closes its half. Raises ConnectionResetError."""
        async with asyncio.timeout(PATIENCE):
            return await self.reader.read(-1)

    async def ended(self) -> bool:
        """Whether the connection ends, in whatever way, with no byte more."""
        try:
            return await self.rest() == b""
        except ConnectionError:
            return True

    def half_close(self) -> None:
        self.writer.write_eof()

    def abort(self) -> None:
        self.writer.transport.abort()

    async def close(self) -> None:
        self.abort()
        await asyncio.sleep(0)

    @property
    def socket(self) -> Any:
        return self.writer.get_extra_info("socket")

    async def _body(self, answer: Answer) -> bytes:
        length = answer.field("content-length")
        if length is not None:
            assert answer.field("transfer-encoding") is None
            return await self.reader.readexactly(int(length))
        if answer.field("transfer-encoding") != "chunked":
            return await self.reader.read(-1)
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"
        return body
