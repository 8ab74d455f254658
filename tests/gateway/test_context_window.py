"""A deployment may have a smaller context window than the model is promised with."""

from __future__ import annotations

from prime_inference.engines.mock import MockEngine, expected_text

from .conftest import StartGateway
from .running import CONTEXT_TOKENS

LONG = [{"role": "user", "content": "word " * 2000}]


async def test_a_prompt_too_long_for_one_deployment_goes_to_a_larger_one(
    start_gateway: StartGateway, spare: MockEngine
):
    async with MockEngine(context_tokens=1024) as small:
        gateway = await start_gateway(small, spare)
        for _ in range(6):  # one more than failures in a row that would open the breaker
            response = await gateway.chat(messages=LONG)
            assert response.status_code == 200
            assert response.json()["choices"][0]["message"]["content"] == expected_text(LONG)
        assert len(spare.requests) == 6
        assert len(small.requests) == 6  # a refusal for length says nothing against it


async def test_a_prompt_too_long_for_all_is_refused_once_each(start_gateway: StartGateway):
    async with MockEngine(context_tokens=1024) as small, MockEngine(context_tokens=512) as smaller:
        gateway = await start_gateway(small, smaller)
        response = await gateway.chat(messages=LONG)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert (len(small.requests), len(smaller.requests)) == (1, 1)
        account = await gateway.generations(1)
        assert account[0]["outcome"] == "refused"


async def test_a_prompt_too_long_for_the_model_is_tried_once(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    words = [{"role": "user", "content": "word " * (CONTEXT_TOKENS + 1)}]
    response = await gateway.chat(messages=words)
    assert response.status_code == 400
    assert len(engine.requests) + len(spare.requests) == 1
