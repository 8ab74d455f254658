"""A server that streams to thousands at an exact pace, to measure the generator itself.

It answers any POST with as many tokens as `max_tokens` says, each in an event that carries
the server's monotonic time, and has so little to do for it that a client on another core
of the same machine is the slower half. Only for `prime inference bench limit`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import time

TICK = 0.001  # seconds; streams are spread over the ticks of one interval
HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nserver: metronome\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":" word"}}],"sent":%.6f}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,'
    b'"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n'
)
MAX_TOKENS = re.compile(rb'"max_tokens":(\d+)')
LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Stream(asyncio.Protocol):
    """One connection: reads a request, then is ticked until its tokens are out."""

    def __init__(self, metronome: Metronome) -> None:
        self._metronome = metronome
        self._buffer = b""
        self._left = 0
        self._asked = 0
        self._words = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's has no class of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._left = 0

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if not end or length is None or len(body) < int(length[1]):
            return
        self._buffer = b""
        tokens = MAX_TOKENS.search(body)
        self._left = self._asked = int(tokens[1]) if tokens else 1
        self._words = len(body.split())
        self.transport.write(HEAD)
        self._metronome.add(self)

    def tick(self, event: bytes) -> bool:
        """Send one token; whether there are more."""
        if self._left <= 0:
            return False
        self._left -= 1
        self.transport.write(event)
        if self._left:
            return True
        end = _chunk(FINISH) + _chunk(USAGE % (self._words, self._asked)) + b"0\r\n\r\n"
        self.transport.write(end)
        return False


class Metronome:
    """Streams at `interval` seconds between tokens. `late` counts ticks more than a tick late."""

    def __init__(self, interval: float) -> None:
        self._slots: list[list[_Stream]] = [[] for _ in range(max(1, round(interval / TICK)))]
        self._next = 0
        self._server: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self.sent = 0
        self.late = 0

    async def start(self, port: int = 0) -> str:
        """Listen on loopback; the base URL."""
        listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Stream(self), sock=listener)
        self._task = asyncio.create_task(self._beat())
        return f"http://127.0.0.1:{listener.getsockname()[1]}/v1"

    async def stop(self) -> None:
        assert self._server is not None
        assert self._task is not None
        self._server.close()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def add(self, stream: _Stream) -> None:
        """Into the slot with the fewest streams, looked at in turn."""
        self._next = (self._next + 1) % len(self._slots)
        self._slots[self._next].append(stream)

    async def _beat(self) -> None:
        due = time.monotonic()
        slot = 0
        while True:
            due += TICK
            wait = due - time.monotonic()
            self.late += wait < -TICK
            await asyncio.sleep(max(0.0, wait))
            slot = (slot + 1) % len(self._slots)
            streams = self._slots[slot]
            if streams:
                event = _chunk(EVENT % time.monotonic())
                self._slots[slot] = [stream for stream in streams if stream.tick(event)]
                self.sent += len(streams)


async def serve(interval: float) -> None:
    """Print the base URL, then stream for whoever asks, until cancelled."""
    metronome = Metronome(interval)
    print(await metronome.start(), flush=True)  # read by the process that started it
    try:
        await asyncio.Event().wait()
    finally:
        await metronome.stop()


def main() -> None:
    """`python -m prime_inference.bench.agents.metronome SECONDS`."""
    import sys

    import uvloop

    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(float(sys.argv[1])))


if __name__ == "__main__":
    main()
