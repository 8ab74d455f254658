"""llama.cpp's server as a child process that is kept alive."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from prime_inference.engines.local.settings import (
    ENGINE_ENVIRONMENT,
    EngineSettings,
    engine_threads,
)
from prime_inference.engines.supervised import (
    PROBE_SECONDS,
    STUCK_SECONDS,
    EngineFailed,
    SupervisedEngine,
)

__all__ = ["EngineFailed", "LocalEngine"]


class LocalEngine(SupervisedEngine):
    """One llama.cpp server in a child process."""

    program = "llama.cpp"
    environment = ENGINE_ENVIRONMENT
    # asks the thread that does all the work; /health answers even when a huge grammar holds it
    probe_path = "/slots"

    def __init__(
        self,
        model_file: Path,
        *,
        slots: int,
        context_tokens: int,
        deployment: str = "",
        log_file: Path | None = None,
        probe_seconds: float = PROBE_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        super().__init__(
            str(model_file),
            deployment=deployment,
            causes=f" with {slots} slots of {context_tokens} tokens: the file may be cut short,"
            " damaged or of a kind that llama.cpp does not know, or memory is short",
            log_file=log_file,
            probe_seconds=probe_seconds,
            stuck_seconds=stuck_seconds,
        )
        self._model_file = model_file
        self._slots = slots
        self._context_tokens = context_tokens

    def arguments(self, port: int) -> list[str]:
        settings = EngineSettings(
            model_file=str(self._model_file),
            port=port,
            slots=self._slots,
            context_tokens=self._context_tokens,
            threads=engine_threads(),
            parent=os.getpid(),
        )
        return ["-m", "prime_inference.engines.local.child", msgspec.json.encode(settings).decode()]
