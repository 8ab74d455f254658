"""Where finished generations are accounted."""

from __future__ import annotations

from typing import Protocol

from prime_inference.domain.generation import Generation


class GenerationSink(Protocol):
    """Takes each generation once. Called on the request's path: it may not wait or raise."""

    def record(self, generation: Generation) -> None: ...
