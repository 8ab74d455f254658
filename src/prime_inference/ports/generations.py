"""Where finished generations are accounted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prime_inference.domain.generation import Generation


class GenerationSink(Protocol):
    """Takes each generation once. Called on the event loop: it may not wait or raise."""

    def record(self, generations: Sequence[Generation]) -> None: ...
