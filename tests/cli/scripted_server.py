"""A real HTTP server that plays a script: what a server of OpenAI's API may send, and worse.

The model's name in a request picks the script.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from prime_inference.wire.http import Reply, Request
from prime_inference.wire.http_server import HttpServer
from prime_inference.wire.openai.errors import render_error

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 8},
}
IN_BAND_ERROR = {
    "error": {
        "message": "The deployment went away.",
        "type": "upstream_error",
        "param": None,
        "code": "upstream_cut",
        "metadata": {"error_type": "provider_unavailable"},
    },
    "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
}
MODELS = [
    {"id": "zeta/small", "object": "model", "created": 1},
    {
        "id": "acme/large",
        "object": "model",
        "created": 2,
        "display_name": "Acme [bold]Large",
        "serving": "gateway",
        "pricing": {
            "input_usd_per_mtok": 0.1,
            "output_usd_per_mtok": 2.5,
            "cache_read_usd_per_mtok": 0.0,
        },
        "specs": {"context_window": 1_048_576, "max_output_tokens": 65_536},
    },
    {
        "id": "acme/medium",
        "object": "model",
        "created": 3,
        "serving": "hosted",
        "pricing": {"input_usd_per_mtok": 0.5, "output_usd_per_mtok": 0.75},
        "specs": {"context_window": 200_000, "supports_reasoning": True},
    },
]

Script = Callable[[dict[str, Any], Reply], Awaitable[None]]


@dataclass
class Seen:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any] = field(default_factory=dict)


def delta(text: str | None = None, *, reasoning: str | None = None, finish: str | None = None):
    """A chunk of a stream."""
    fields = {"content": text, "reasoning_content": reasoning}
    content = {name: value for name, value in fields.items() if value is not None}
    choice = {"index": 0, "delta": content, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def event(data: object) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def completion(text: str | None, finish: str | None = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "chatcmpl-1", "model": "m", "choices": [choice], "usage": USAGE}


def whole(status: int, document: object, *headers: tuple[bytes, bytes]) -> Script:
    """Answers with one JSON document."""

    async def script(body: dict[str, Any], reply: Reply) -> None:
        reply.send(status, [*JSON, *headers], json.dumps(document).encode())

    return script


def raw(status: int, content_type: bytes, data: bytes) -> Script:
    """Answers with these bytes."""

    async def script(body: dict[str, Any], reply: Reply) -> None:
        reply.send(status, [(b"content-type", content_type)], data)

    return script


def error(status: int, code: str, message: str, *headers: tuple[bytes, bytes]) -> Script:
    fields = {"message": message, "type": "some_error", "param": None, "code": code}
    return whole(status, {"error": fields}, *headers)


def stream(*events: bytes, cut: bool = False) -> Script:
    """Answers with a stream; `cut` breaks the connection in place of its end."""

    async def script(body: dict[str, Any], reply: Reply) -> None:
        reply.start(200, EVENTS)
        for data in events:
            reply.write(data)
            await asyncio.sleep(0.005)  # so that events are writes of their own
        if cut:
            reply.abort()
        else:
            reply.end()

    return script


DONE = b"data: [DONE]\n\n"


async def plain(body: dict[str, Any], reply: Reply) -> None:
    """A good answer, whole or as a stream with keep-alive comments in it."""
    if not body.get("stream"):
        await whole(200, completion("Hello, wörld."))(body, reply)
        return
    events = [b": keep-alive\n\n", event(delta("Hello, ")), event(delta("wörld."))]
    events.append(event(delta(finish="stop")))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(event({"choices": [], "usage": USAGE}))
    await stream(*events, DONE)(body, reply)


async def echo(body: dict[str, Any], reply: Reply) -> None:
    """Answers how many messages came, and the roles and texts of them."""
    turns = [f"{turn['role']}={turn['content']}" for turn in body["messages"]]
    text = f"[{'|'.join(turns)}]"
    await stream(event(delta(text)), event(delta(finish="stop")), DONE)(body, reply)


SCRIPTS: dict[str, Script] = {
    "plain": plain,
    "echo": echo,
    "reasoning": stream(
        event(delta(reasoning="Let me ")),
        event(delta(reasoning="think.")),
        event(delta("42")),
        event(delta(finish="stop")),
        DONE,
    ),
    "in-band-error": stream(event(delta("Half an ")), event(IN_BAND_ERROR)),
    "in-band-error-whole": whole(200, {"error": IN_BAND_ERROR["error"]}),
    "error-finish": stream(event(delta("Half")), event(delta(finish="error"))),
    "cut": stream(event(delta("Half an ")), cut=True),
    "ended-early": stream(event(delta("Half an ")), DONE),
    "ended-early-whole": whole(200, completion("Half an ", finish=None)),
    "no-done": stream(event(delta("Whole.")), event(delta(finish="stop"))),
    "garbage-event": stream(event(delta("Half")), b"data: {nonsense\n\n", DONE),
    "wrong-type": stream(event({"choices": [{"delta": {"content": 5}}]}), DONE),
    "garbage": raw(200, b"application/json", b"<html>proxy says no</html>"),
    "not-a-stream": raw(200, b"text/html", b"<html>proxy says no</html>"),
    "no-choices": whole(200, {"id": "x", "choices": []}),
    "escape": stream(
        event(delta("red \x1b[31m \x1b]52;c;ZXZpbA==\x07 end")), event(delta(finish="stop")), DONE
    ),
    "lone-surrogate": raw(
        200,
        b"application/json",
        b'{"choices":[{"message":{"content":"a\\ud83d!"},"finish_reason":"stop"}]}',
    ),
    "unauthorized": error(401, "invalid_api_key", "The API key is not valid."),
    "broke": error(402, "insufficient_quota", "The balance is $0.00."),
    "unknown": error(404, "model_not_found", "The model 'unknown' does not exist."),
    "limited": error(
        429, "rate_limit_exceeded", "Too many requests.", (b"retry-after", b"7"),
        (b"x-request-id", b"req-1"),
    ),
    "bad-gateway": raw(502, b"text/html", b"<html>Bad Gateway</html>"),
    "redirect": raw(302, b"text/html", b""),
}  # fmt: skip


class ScriptedServer:
    """Serves scripts from a thread of its own; use it as a context manager."""

    def __init__(self) -> None:
        self.requests: list[Seen] = []
        self.client_left = threading.Event()
        self.first_piece_sent = threading.Event()
        self.url = ""
        self.models: Any = {"object": "list", "data": MODELS}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        self._server = HttpServer(self._handle, render_error)
        _, port = await self._server.start("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{port}/api/v1"

    async def _handle(self, request: Request, reply: Reply) -> None:
        body = json.loads(request.body) if request.body else {}
        headers = {name.decode(): value.decode() for name, value in request.headers}
        self.requests.append(Seen(request.path, headers, body))
        if request.path == "/api/v1/models":
            await whole(200, self.models)({}, reply)
        elif body["model"] == "endless":
            await self._endless(reply)
        else:
            await SCRIPTS[body["model"]](body, reply)

    async def _endless(self, reply: Reply) -> None:
        """Writes until the client leaves, which it notes."""
        reply.start(200, EVENTS)
        reply.write(event(delta("and on ")))
        self.first_piece_sent.set()
        try:
            while True:
                await asyncio.sleep(0.02)
                reply.write(event(delta("and on ")))
        finally:
            self.client_left.set()

    @property
    def chat_requests(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.path.endswith("/chat/completions")]


def roles(messages: Iterable[dict[str, str]]) -> list[str]:
    return [message["role"] for message in messages]
