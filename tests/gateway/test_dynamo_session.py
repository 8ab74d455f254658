"""A conversation's id reaches Dynamo, as a digest."""

from __future__ import annotations

import re
from pathlib import Path

from prime_inference.engines.mock import MockEngine

from .running import chat, deployment, running


def sessions(engine: MockEngine) -> list[str | None]:
    """Of every request that the engine saw."""
    return [seen.header("x-dynamo-session-id") for seen in engine.requests]


async def test_turns_of_a_conversation_carry_one_session_to_dynamo(
    engine: MockEngine, tmp_path: Path
):
    target = deployment(1, engine.base_url, engine="dynamo")
    async with running(tmp_path, [target]) as gateway:
        for key in ("conversation 1", "conversation 1", "conversation 2", None):
            fields = {"prompt_cache_key": key} if key else {}
            assert (await gateway.post("/chat/completions", chat(**fields))).status_code == 200
    first, again, other, none = sessions(engine)
    assert first is not None
    assert re.fullmatch(r"[0-9a-f]{16}", first)
    assert first == again != other
    assert none is None
