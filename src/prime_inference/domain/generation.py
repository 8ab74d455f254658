"""The accounted outcome of one request."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from prime_inference.domain.pools import SERVERLESS, Over
from prime_inference.domain.usage import Usage

Outcome = Literal["complete", "cancelled", "shutdown", "failed", "refused"]
"""Answered whole; the client left; we stopped; the upstream failed; the request was at fault."""


class Generation(Struct, frozen=True, gc=False):
    """What happened to a request, without a word of its content.

    Times are in seconds: `started_at` since the epoch, the others durations.
    `error` is the error code of a generation that is not complete.
    """

    id: str
    tenant: str
    key_id: str
    route: str
    model: str
    deployment: str
    streamed: bool
    outcome: Outcome
    status: int
    error: str
    usage: Usage
    started_at: float
    first_token_seconds: float
    duration_seconds: float
    continuations: int = 0  # times that another engine went on with the answer
    hedged: bool = False  # a second attempt was begun beside a late one
    pool: str = SERVERLESS  # whose slot served it
    over: Over = ""  # why no reservation of the team served it
