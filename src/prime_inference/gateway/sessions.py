"""Conversations, and the deployment that each comes back to because it holds its KV cache.

A client names a conversation by `X-Session-ID` or `prompt_cache_key`. One without a name is
known by how it began. Its first turn, of which no deployment holds anything, goes where the
others will go unless that is notably later than elsewhere: consistent hashing with bounded
loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018), with expected first tokens for loads.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from prime_inference.gateway.operations import Operation
from prime_inference.gateway.run import Run
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.guard import Guard
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
    """The key of the conversation that a request belongs to; 0 where there is none."""
    if operation.session:
        return session_key(tenant, operation.session)
    messages = operation.content.get("messages")
    return _conversation_key(tenant, messages) if messages else 0


def begins(operation: Operation) -> bool:
    """Whether it is the first turn of a conversation without a name, or of none."""
    messages = operation.content.get("messages") or ()
    return not operation.session and not any(
        isinstance(each, AssistantMessage) for each in messages[:4]
    )


def session_header(session: int) -> bytes:
    """The header line by which Dynamo's router knows a session; the client's name stays here."""
    return b"x-dynamo-session-id: %016x\r\n" % session


class Homes:
    """Which deployment each session belongs to."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._rings: dict[tuple[tuple[str, int], ...], SessionRing] = {}

    def choose(self, run: Run, able: Mapping[str, Upstream], offered: Sequence[str]) -> str:
        """The first of the session's ranking that is offered (best first).

        One that begins goes to the best where that one is notably slower or busier.
        """
        home = self._home(run.session, able, offered)
        if home == offered[0] or not begins(run.operation):
            return home
        return home if self._guard.is_near(home, offered[0]) else offered[0]

    def _home(self, session: int, able: Mapping[str, Upstream], offered: Sequence[str]) -> str:
        weights = tuple((name, each.deployment.slots) for name, each in able.items())
        ring = self._rings.get(weights)
        if ring is None:
            if len(self._rings) >= RINGS:  # fleets of the past
                self._rings.clear()
            ring = self._rings[weights] = SessionRing(dict(weights))
        return ring.first(session, offered)[0]


def _conversation_key(tenant: str, messages: Sequence[Message]) -> int:
    """From the user's first message and what is before it; both stay as the turns go on."""
    key = zlib.crc32(tenant.encode())
    for message in messages[:3]:
        key = zlib.crc32(_sample(message), key)
        if isinstance(message, UserMessage):
            break
    return key | 1 << 32  # never 0


def _sample(message: Message) -> bytes:
    text = message.content
    if not isinstance(text, str):
        text = "".join(getattr(part, "text", "") for part in text or ())
    return f"{len(text)}{text[:SAMPLE]}{text[-SAMPLE:]}".encode(errors="replace")
