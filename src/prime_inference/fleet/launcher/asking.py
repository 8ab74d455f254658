"""Questions over HTTP to whatever listens, which may be broken, hostile or another program.

An answer has a clock over all of it, a size on the wire, and a number of pieces, since a byte
at a time costs more work than all of them at once. Whoever goes beyond is cut off, and asked
less often from then on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import httptools
from msgspec import Struct

from prime_inference.domain.backoff import Backoff
from prime_inference.ports.clock import Clock
from prime_inference.wire.http_client import Origin, request_line

ANSWER_SECONDS = 2.0  # an answer takes milliseconds; a frozen process gives none
MOST_PIECES = 4096  # chunks, reads, headers, interim answers: a large answer has a hundred
MOST_HEAD_BYTES = 64 * 1024  # beside the body: servers write hundreds
MOST_PAUSE_SECONDS = 5.0  # a flood costs 20 ms, and one that has mended its ways is to be seen


class Answer(Struct, frozen=True):
    """What came in time: the status, and the body if all of it did."""

    status: int
    body: bytes | None

    @property
    def success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(slots=True)
class _Flood:
    """One that sent too much: what it said, and when it may be asked again."""

    said: Answer | None = None
    again_at: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class Asker:
    """Asks again and again; each question is a connection of its own."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._floods: dict[str, _Flood] = {}

    async def ask(
        self, url: str, most_bytes: int, seconds: float = ANSWER_SECONDS
    ) -> Answer | None:
        """`seconds` are those of the whole answer; None where not even its status came in them.

        Where too much came last time, that answer stands until it is time to ask again.
        """
        flood = self._floods.get(url)
        if flood is not None and self._clock() < flood.again_at:
            return flood.said
        hearing = _Hearing(most_bytes)
        await _hear(hearing, url, seconds)
        if hearing.too_much:
            self._note_flood(url, hearing.answer)
        else:
            self._floods.pop(url, None)
        return hearing.answer

    def _note_flood(self, url: str, said: Answer | None) -> None:
        now = self._clock()
        forgotten = now - 60.0  # nobody asks those any more
        for old in [old for old, one in self._floods.items() if one.again_at < forgotten]:
            del self._floods[old]
        flood = self._floods.setdefault(url, _Flood())
        flood.said = said
        flood.again_at = now + min(flood.backoff.pause(0.0), MOST_PAUSE_SECONDS)


async def _hear(hearing: _Hearing, url: str, seconds: float) -> None:
    """Ask, and return when there is no more to hear."""
    loop = asyncio.get_running_loop()
    try:
        origin = Origin.parse(url)
        line = request_line("GET", origin.prefix or "/")
    except ValueError:
        return
    head = f"host: {origin.authority}\r\naccept-encoding: identity\r\nconnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(seconds):
            transport, _ = await loop.create_connection(lambda: hearing, origin.host, origin.port)
            try:
                transport.write(line + head.encode())
                await hearing.over.wait()
            finally:
                transport.abort()
    except (OSError, TimeoutError):
        pass


class _EnoughHeard(Exception):
    """Nothing that follows matters."""


class _Hearing(asyncio.Protocol):
    """One answer, as it comes."""

    def __init__(self, most_bytes: int) -> None:
        self.over = asyncio.Event()
        self.too_much = False
        self._most_bytes = most_bytes
        self._bytes = self._pieces = 0
        self._parser: Any = httptools.HttpResponseParser(self)
        self._status: int | None = None
        self._measured = False  # its head says where it ends; else its connection does
        self._whole = False
        self._body = bytearray()

    @property
    def answer(self) -> Answer | None:
        if self._status is None:
            return None
        return Answer(self._status, bytes(self._body) if self._whole else None)

    def data_received(self, data: bytes) -> None:
        if self.over.is_set():
            return
        self._bytes += len(data)
        self._pieces += 1
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end()  # it is no HTTP; or one of those below has had enough
        else:
            if self._bytes > self._most_bytes + MOST_HEAD_BYTES or self._pieces > MOST_PIECES:
                self._flooded()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.is_set() and not self._measured:
            self._whole = self._status is not None and exc is None
        self._end()

    # -- parser callbacks: an error in one ends the parsing

    def on_message_begin(self) -> None:
        self._measured = False
        self._piece()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._measured |= name.lower() in (b"content-length", b"transfer-encoding")
        self._piece()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # else the answer is still to come
            self._status = status

    def on_body(self, body: bytes) -> None:
        self._body += body
        self._piece()

    def on_message_complete(self) -> None:
        if self._status is not None:
            self._whole = True
            raise _EnoughHeard

    def _piece(self) -> None:
        self._pieces += 1
        if self._pieces > MOST_PIECES or len(self._body) > self._most_bytes:
            self._flooded()
            raise _EnoughHeard

    def _flooded(self) -> None:
        self.too_much = True
        self._end()

    def _end(self) -> None:
        self._parser = None
        self.over.set()
