"""The mock engine counts a conversation as it bills it."""

from __future__ import annotations

import httpx

from prime_inference.engines.mock import MockEngine, expected_usage

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Tell me about a river"},
]


async def test_a_conversation_is_counted_as_it_is_billed():
    async with MockEngine() as engine, httpx.AsyncClient() as client:
        url = engine.base_url.removesuffix("/v1") + "/tokenize"
        answer = (await client.post(url, json={"model": "m", "messages": MESSAGES})).json()
        assert answer["count"] == len(answer["tokens"]) == expected_usage(MESSAGES)[0]
        assert (await client.post(url, json={"prompt": "x"})).status_code == 400
