"""The least that a gateway does, once, for every pair of server and client half.

Checks the digest of a key, decodes the request, replaces the model, sends it on, reads the
usage of the answer. No routing, no limits, no error mapping: what differs between two
measurements is the HTTP code around this.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

API_KEY = "sk-design"
DIGEST = hashlib.sha256(API_KEY.encode()).digest()
JSON = [("content-type", "application/json")]
EVENTS = [("content-type", "text/event-stream")]


class Client(Protocol):
    """The half that talks to the upstream."""

    async def whole(self, body: bytes) -> bytes:
        """Post a request; the body of its answer."""
        ...

    def stream(self, body: bytes) -> AsyncIterator[bytes]:
        """Post a request; the pieces of its answer as they come."""
        ...


class Reply(Protocol):
    """The half that talks to the client of the gateway."""

    async def send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None: ...

    async def start(self, status: int, headers: list[tuple[str, str]]) -> None: ...

    async def write(self, data: bytes) -> None: ...

    async def end(self) -> None: ...


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class Answer(msgspec.Struct):
    usage: Usage


class Gateway:
    """The handler; `tokens` is what would be billed."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model
        self._answer = msgspec.json.Decoder(Answer)
        self.tokens = 0

    async def handle(self, authorization: str, body: bytes, reply: Reply) -> None:
        """Answer one chat completion."""
        digest = hashlib.sha256(authorization.removeprefix("Bearer ").encode()).digest()
        if not hmac.compare_digest(digest, DIGEST):
            await reply.send(401, JSON, b"{}")
            return
        fields = msgspec.json.decode(body)
        fields["model"] = self._model
        onward = msgspec.json.encode(fields)
        if fields.get("stream"):
            await reply.start(200, EVENTS)
            async for data in self._client.stream(onward):
                await reply.write(data)
            await reply.end()
            return
        answer = await self._client.whole(onward)
        self.tokens += self._answer.decode(answer).usage.completion_tokens
        await reply.send(200, JSON, answer)
