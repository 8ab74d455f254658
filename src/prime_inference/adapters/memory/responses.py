"""Responses in memory: gone when the process ends."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.ports.responses import StoredResponse

MAX_OWNER_BYTES = 64 * 1024 * 1024  # of memory; about a thousand turns of agents


class MemoryResponseStore:
    """Implements `ports.responses.ResponseStore`."""

    def __init__(self, max_owner_bytes: int = MAX_OWNER_BYTES) -> None:
        self._max = max_owner_bytes
        self._owners: dict[str, dict[str, StoredResponse]] = {}  # in order of age

    async def put(self, response: StoredResponse, now: float) -> None:
        held = self._owners.setdefault(response.owner, {})
        held[response.id] = response
        for each in [each for each in held.values() if each.expires_at <= now]:
            del held[each.id]
        size = sum(each.size for each in held.values())
        while size > self._max:
            oldest = next(iter(held))
            size -= held.pop(oldest).size

    async def get(self, owner: str, response_id: str, now: float) -> StoredResponse | None:
        response = self._owners.get(owner, {}).get(response_id)
        return response if response is not None and response.expires_at > now else None

    async def conversation(
        self, owner: str, response_id: str, now: float
    ) -> Sequence[bytes] | None:
        turns = []
        step: str | None = response_id
        while step is not None:
            response = await self.get(owner, step, now)
            if response is None:
                return None
            turns.append(response.items)
            step = response.previous
        return turns[::-1]

    async def remove(self, owner: str, response_id: str) -> bool:
        return self._owners.get(owner, {}).pop(response_id, None) is not None

    async def close(self) -> None:
        self._owners.clear()
