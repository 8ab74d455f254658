"""Where responses are kept that later requests may go on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class StoreUnavailable(Exception):
    """The store cannot be used now."""


class StoredResponse(Struct, frozen=True):
    """One turn of a conversation.

    `items` is the JSON array of all that it added: `inputs` items that were asked, then those
    that were answered. `body` is the response object.
    """

    id: str
    owner: str  # id of the key that made it; no other key is shown it
    previous: str | None  # the turn before it
    items: bytes
    inputs: int
    body: bytes
    expires_at: float  # seconds since the epoch

    @property
    def size(self) -> int:
        """Bytes that count against the owner's bound."""
        return len(self.items) + len(self.body)


class ResponseStore(Protocol):
    """Bounded for each owner: the oldest turns give way. `now` is in seconds since the epoch.

    Every call raises StoreUnavailable. What has expired, was removed or belongs to another
    owner is not there, and one cannot tell which.
    """

    async def put(self, response: StoredResponse, now: float) -> None:
        """Keep a response."""
        ...

    async def get(self, owner: str, response_id: str, now: float) -> StoredResponse | None:
        """One response."""
        ...

    async def conversation(
        self, owner: str, response_id: str, now: float
    ) -> Sequence[bytes] | None:
        """`items` of each turn up to that response, oldest first; None if one is not there."""
        ...

    async def remove(self, owner: str, response_id: str) -> bool:
        """Forget a response; false if it is not there."""
        ...

    async def close(self) -> None:
        """Free what the store holds."""
        ...
