"""A wire between gateway and engine that remembers what went over it, and breaks on demand."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

CUT = re.compile(rb"/cut-(\d+)")
CONTENT = re.compile(rb'"(?:content|text)":"[^"]')


@dataclass
class Exchange:
    """One request as the engine was sent it, and the events of its answer that got through."""

    path: str
    body: Any
    answer: bytes = b""

    @property
    def events(self) -> list[Any]:
        lines = [line for line in self.answer.split(b"\n") if line.startswith(b"data: {")]
        return [msgspec.json.decode(line[6:]) for line in lines]

    @property
    def choices(self) -> list[Any]:
        return [choice for event in self.events for choice in event["choices"]]

    @property
    def text(self) -> str:
        return "".join(
            (c["delta"].get("content") or "") if "delta" in c else c["text"] for c in self.choices
        )

    @property
    def ids(self) -> list[int]:
        """Token ids as llama.cpp writes them into logprobs."""
        named = [c["logprobs"]["content"] for c in self.choices if c.get("logprobs")]
        return [token["id"] for content in named for token in content]


@dataclass
class WireTap:
    """Passes requests on to `engine_url`; a path that begins with `/cut-K` breaks off after
    K events with content."""

    engine_url: str
    exchanges: list[Exchange] = field(default_factory=list)
    url: str = ""

    def of(self, path: str) -> list[Exchange]:
        return [each for each in self.exchanges if each.path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            found = CUT.search(head)
            head = CUT.sub(b"", head, count=1)
            head = head.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)  # its end ends ours
            exchange = Exchange(head.split(b" ")[1].decode(), msgspec.json.decode(body))
            self.exchanges.append(exchange)
            await self._pass_on(head + body, exchange, writer, int(found[1]) if found else None)
        writer.close()

    async def _pass_on(
        self, request: bytes, exchange: Exchange, writer: asyncio.StreamWriter, limit: int | None
    ) -> None:
        engine = urlsplit(self.engine_url)
        upstream, sender = await asyncio.open_connection(engine.hostname, engine.port)
        try:
            sender.write(request)
            while data := await upstream.readline():
                exchange.answer += data
                writer.write(data)
                await writer.drain()
                if limit is not None and CONTENT.search(data):
                    limit -= 1
                    if not limit:
                        writer.write(await upstream.readline())  # the end of the event
                        await writer.drain()
                        break
        finally:
            sender.close()


@contextlib.asynccontextmanager
async def wire_tap(engine_url: str) -> AsyncIterator[WireTap]:
    tap = WireTap(engine_url)
    server = await asyncio.start_server(tap.serve, "127.0.0.1", 0)
    tap.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
