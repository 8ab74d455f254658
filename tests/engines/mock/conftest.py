from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from prime_inference.engines.mock import MockEngine
from prime_inference.wire.sse import SseFramer

HELLO = [{"role": "user", "content": "Say hello"}]


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine() as engine:
        yield engine


class Client:
    """A client of one engine that can ask well and read raw bytes."""

    def __init__(self, engine: MockEngine) -> None:
        self.engine = engine
        self._writers: list[asyncio.StreamWriter] = []
        self.http = httpx.AsyncClient(base_url=engine.base_url, timeout=5)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def chat(self, **fields: Any) -> httpx.Response:
        body = {"model": "any/model", "messages": HELLO, **fields}
        return await self.http.post("/chat/completions", json=body)

    async def events(self, **fields: Any) -> list[Any]:
        """The events of a streamed chat completion; [DONE] as text."""
        answer = await self.chat(stream=True, **fields)
        return parse_events(answer.content)

    async def raw(
        self, *, receive_buffer: int | None = None, **fields: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which a chat completion was asked for."""
        where = urlsplit(self.engine.base_url)
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (where.hostname, where.port))
        reader, writer = await asyncio.open_connection(sock=sock)
        self._writers.append(writer)
        body = json.dumps({"model": "any/model", "messages": HELLO, **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        return reader, writer


def parse_events(body: bytes) -> list[Any]:
    data = SseFramer(8 * 1024 * 1024).feed(body)
    return [json.loads(event) if event != b"[DONE]" else "[DONE]" for event in data]


def streamed_text(events: list[Any], index: int = 0) -> str:
    choices = [c for event in events if event != "[DONE]" for c in event["choices"]]
    return "".join(c["delta"].get("content") or "" for c in choices if c["index"] == index)


@pytest.fixture
async def client(engine: MockEngine) -> AsyncIterator[Client]:
    async with Client(engine) as client:
        yield client
