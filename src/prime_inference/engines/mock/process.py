"""A mock engine as a child process that is kept alive."""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from prime_inference.engines.supervised import SupervisedEngine


class MockSettings(Struct, frozen=True):
    """One run of the mock engine's process."""

    model: str
    context_tokens: int
    pace_ms: float
    first_token_ms: float
    port: int
    parent: int  # process id


class MockProcess(SupervisedEngine):
    """One mock engine in a child process."""

    program = "The mock engine"
    probe_path = "/health"  # one thread does everything

    def __init__(
        self,
        model: str,
        *,
        context_tokens: int,
        pace_ms: float = 0.0,
        first_token_ms: float = 0.0,
        deployment: str = "",
    ) -> None:
        super().__init__(model, deployment=deployment)
        self._model = model
        self._context_tokens = context_tokens
        self._pace_ms = pace_ms
        self._first_token_ms = first_token_ms

    def arguments(self, port: int) -> list[str]:
        settings = MockSettings(
            self._model,
            self._context_tokens,
            self._pace_ms,
            self._first_token_ms,
            port,
            os.getpid(),
        )
        return ["-m", "prime_inference.engines.mock.child", msgspec.json.encode(settings).decode()]
