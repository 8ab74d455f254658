"""The composition root: the only place that wires adapters into ports and starts processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `prime inference serve` is told on the command line."""

    state_dir: Path
    cache_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    control_port: int = 8001
    model_file: Path | None = None  # a GGUF file; None: the default model, fetched once
    model_id: str | None = None  # what clients name it; None: derived from the file's name
    slots: int = 4  # sequences the engine decodes at a time
    context_tokens: int | None = None  # context window; None: what the model was trained with


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running server, as announced once it is ready to answer."""

    base_url: str  # http://127.0.0.1:8000/api/v1
    control_url: str  # http://127.0.0.1:8001
    api_key: str
    model: str


async def serve(options: ServeOptions, announce: Callable[[Endpoint], None]) -> None:
    """Run gateway and local engine until SIGINT or SIGTERM; a second SIGINT stops at once."""
    raise SystemExit("not wired yet")
