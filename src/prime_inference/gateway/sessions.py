"""Conversations, and the deployment that each comes back to because it holds its KV cache.

A client names a conversation by `X-Session-ID` or `prompt_cache_key`. One without a name is
known by how it began, from its second turn on: before that no deployment holds anything of
it, and it goes where there is least to do.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from prime_inference.gateway.operations import Operation
from prime_inference.gateway.upstreams import Upstream
from prime_inference.routing.affinity import SessionRing, session_key
from prime_inference.wire.http import Request
from prime_inference.wire.openai.chat_request import AssistantMessage, Message, UserMessage

RINGS = 64  # a model has one, and some for requests that not all of its deployments can serve
SAMPLE = 256  # characters of a message's beginning and end: templates share one, not both


def session_name(request: Request) -> str:
    """What the client calls the conversation in a header."""
    name = request.header(b"x-session-id")
    return "" if name is None else name.decode("latin-1")


def session_of(tenant: str, operation: Operation) -> int:
    """The key of the conversation that a request belongs to; 0 for one without a past or name."""
    if operation.session:
        return session_key(tenant, operation.session)
    messages = operation.content.get("messages")
    return 0 if messages is None else _conversation_key(tenant, messages)


def session_header(session: int) -> bytes:
    """The header line by which Dynamo's router knows a session; the client's name stays here."""
    return b"x-dynamo-session-id: %016x\r\n" % session


class Homes:
    """Which deployment each session belongs to."""

    def __init__(self) -> None:
        self._rings: dict[tuple[tuple[str, int], ...], SessionRing] = {}

    def choose(self, session: int, able: Mapping[str, Upstream], offered: Sequence[str]) -> str:
        """The first of the session's ranking that is offered."""
        weights = tuple((name, each.deployment.slots) for name, each in able.items())
        ring = self._rings.get(weights)
        if ring is None:
            if len(self._rings) >= RINGS:  # fleets of the past
                self._rings.clear()
            ring = self._rings[weights] = SessionRing(dict(weights))
        return ring.first(session, offered)[0]


def _conversation_key(tenant: str, messages: Sequence[Message]) -> int:
    """From the first message of all and the user's first; both stay as the turns go on."""
    if len(messages) < 3 or not any(isinstance(each, AssistantMessage) for each in messages[1:4]):
        return 0
    key = zlib.crc32(tenant.encode())
    key = zlib.crc32(_sample(messages[0]), key)
    for message in messages[1:3]:
        if isinstance(message, UserMessage):
            key = zlib.crc32(_sample(message), key)
            break
    return key | 1 << 32  # never 0


def _sample(message: Message) -> bytes:
    text = message.content
    if not isinstance(text, str):
        text = "".join(getattr(part, "text", "") for part in text or ())
    return f"{len(text)}{text[:SAMPLE]}{text[-SAMPLE:]}".encode(errors="replace")
