"""How well KV caches serve a deployment, as its own processes tell."""

from __future__ import annotations

from msgspec import Struct


class CacheReport(Struct, frozen=True):
    """One deployment, since its processes started. None: they do not say."""

    prompt_tokens: float = 0
    cached_tokens: float = 0  # of those, found on the worker that the router chose
    host_queries: float = 0  # tokens looked for in the second tier
    host_hits: float = 0
    queue_seconds: float | None = None  # mean wait of a request in a worker's queue
    transfer_seconds: float | None = None  # mean of a KV transfer

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def host_hit_rate(self) -> float | None:
        return self.host_hits / self.host_queries if self.host_queries else None
