"""An engine that sends exactly the bytes a test gives it, cut wherever the test says.

For quirks of engines that the mock engine does not have: tool calls with odd indices,
finish reasons in the wrong place, errors in shapes of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
PAUSE_SECONDS = 0.003  # so that pieces arrive as reads of their own


def event(chunk: Any) -> bytes:
    """One server-sent event."""
    return b"data: %b\n\n" % (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode())


def delta(finish: str | None = None, index: int = 0, **fields: Any) -> bytes:
    """An event with one delta of one choice."""
    return event({"choices": [{"index": index, "delta": fields, "finish_reason": finish}]})


def tool_delta(*calls: dict[str, Any]) -> bytes:
    """An event with pieces of tool calls."""
    return delta(tool_calls=list(calls))


def usage(prompt: int = 3, completion: int = 5, choices: Sequence[Any] = ()) -> bytes:
    counts = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    return event({"choices": list(choices), "usage": counts})


DONE = event(b"[DONE]")


def stream(*events: bytes) -> list[bytes]:
    """A whole answer whose every event is a write of its own."""
    return [STREAM_HEAD, *events]


def answer(body: Any, status: int = 200, *headers: str, kind: str = "application/json") -> bytes:
    """A whole HTTP answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = [f"content-type: {kind}", f"content-length: {len(data)}", *headers]
    return (
        "\r\n".join([f"HTTP/1.1 {status} X", *fields, "connection: close", "", ""]).encode() + data
    )


class ScriptedEngine:
    """Plays `pieces` to every request, then closes.

    `bodies` are what it was asked, `written` how many pieces it got rid of.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = list(pieces)
        self.heads: list[bytes] = []
        self.bodies: list[dict[str, Any]] = []
        self.written = 0
        self.base_url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.heads.append(head)
            self.bodies.append(json.loads(await reader.readexactly(length)))
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                self.written += 1
                await asyncio.sleep(PAUSE_SECONDS if len(self.pieces) < 100 else 0)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the gateway has seen enough
        finally:
            writer.close()

    async def __aenter__(self) -> ScriptedEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


@asynccontextmanager
async def scripted(*pieces: bytes) -> AsyncIterator[ScriptedEngine]:
    """An engine that streams these events, one at a time."""
    async with ScriptedEngine(stream(*pieces)) as engine:
        yield engine
