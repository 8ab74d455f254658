from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_inference.bench.gateway.connection import Wanted, prepare
from prime_inference.engines.mock import MockEngine

Ask = Callable[..., Wanted]


@pytest.fixture
def wanted(tmp_path: Path) -> Ask:
    """Prepares a chat completion for an engine."""

    def ask(engine: MockEngine, **fields: Any) -> Wanted:
        body = tmp_path / "body.json"
        message = {"role": "user", "content": "hello"}
        body.write_text(json.dumps({"model": "m", "messages": [message], **fields}))
        return prepare(f"{engine.base_url}/chat/completions", body, None)

    return ask
