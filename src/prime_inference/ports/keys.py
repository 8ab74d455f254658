"""Where API keys are looked up."""

from __future__ import annotations

from typing import Protocol

from prime_inference.domain.keys import ApiKey


class KeyStore(Protocol):
    """Look-up from memory: it stands on every request's path and may not wait."""

    def find(self, key_id: str) -> ApiKey | None:
        """The key of that id, or None."""
        ...
