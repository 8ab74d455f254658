"""The tokens and the cost of one generation, as they are accounted."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from prime_inference.domain.generation import Outcome

EventKind = Literal["usage"]
SERVERLESS = "serverless"
NO_PRICE = 0  # a price version that no price has


class UsageEvent(Struct, frozen=True, gc=False, array_like=True):
    """Written once; unique by (tenant, generation, kind).

    `cost` is in nanodollars, `at` microseconds since the epoch: when the request was
    accepted. It decides day, month and price, and is never taken anew, so that a repeated
    event falls into the same day. The order of the fields is the outbox's format: new ones
    go to the end and have defaults.
    """

    tenant: str
    generation: str
    kind: EventKind
    key_id: str
    model: str
    deployment: str
    pool: str
    route: str
    outcome: Outcome
    streamed: bool
    price_version: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: int
    at: int
    first_token_us: int
    duration_us: int
    estimated: bool = False  # the engine reported no usage: its tokens are ours

    @property
    def identity(self) -> tuple[str, str, str]:
        return self.tenant, self.generation, self.kind
