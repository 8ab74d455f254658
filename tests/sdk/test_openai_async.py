"""The SDK's asynchronous client: what differs from the other one, and many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from prime_inference.engines.mock import expected_text, expected_usage
from tests.gateway.processes import Processes
from tests.gateway.running import MODEL, eventually

MESSAGES: Any = [{"role": "user", "content": "Tell me about a river"}]


class City(BaseModel):
    name: str


async def test_a_plain_answer(async_client: openai.AsyncOpenAI):
    answer = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == expected_text(MESSAGES)
    assert answer.usage is not None
    assert answer.usage.total_tokens == sum(expected_usage(MESSAGES))


async def test_a_stream_with_usage(async_client: openai.AsyncOpenAI):
    stream = await async_client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == expected_text(MESSAGES)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 64


async def test_the_raw_response(async_client: openai.AsyncOpenAI):
    raw = await async_client.chat.completions.with_raw_response.create(
        model=MODEL, messages=MESSAGES
    )
    assert raw.headers["x-generation-id"] == raw.parse().id


async def test_parse_plain_and_streamed(async_client: openai.AsyncOpenAI):
    answer = await async_client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=City
    )
    assert isinstance(answer.choices[0].message.parsed, City)
    async with async_client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, response_format=City
    ) as stream:
        answer = await stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, City)


async def test_completions_embeddings_and_models(async_client: openai.AsyncOpenAI):
    completion = await async_client.completions.create(model=MODEL, prompt="Once", max_tokens=3)
    assert completion.choices[0].text == expected_text("Once", 3)
    embeddings = await async_client.embeddings.create(model=MODEL, input="a river")
    assert len(embeddings.data[0].embedding) == 8
    assert [model.id async for model in async_client.models.list()] == [MODEL]


async def test_a_hundred_streams_at_once(async_client: openai.AsyncOpenAI, processes: Processes):
    processes.behave("pace-1ms")

    async def story(number: int) -> bool:
        messages: Any = [{"role": "user", "content": f"story number {number}"}]
        stream = await async_client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=20, stream=True
        )
        said = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        return said == expected_text(messages, 20)

    assert all(await asyncio.gather(*(story(number) for number in range(100))))


async def test_a_stream_that_is_closed_early_stops_the_engine(
    async_client: openai.AsyncOpenAI, processes: Processes
):
    processes.behave("pace-10ms.answer-2000")
    stream = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    async with stream:
        await anext(stream)
    await eventually(lambda: processes.requests()[-1]["outcome"] == "client left", seconds=1)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"model": "acme/nothing"}, openai.NotFoundError),
        ({"temperature": 3}, openai.BadRequestError),
        ({"extra_headers": {"authorization": "Bearer no"}}, openai.AuthenticationError),
        ({"timeout": 0.0001}, openai.APITimeoutError),
    ],
)
async def test_errors_are_the_sdks_own(
    async_client: openai.AsyncOpenAI, fields: dict[str, Any], error: type[openai.OpenAIError]
):
    with pytest.raises(error):
        await async_client.chat.completions.create(
            **{"model": MODEL, "messages": MESSAGES, **fields}
        )


@pytest.mark.parametrize("behaviour", ["end-after-5", "error-after-5", "malformed-at-6"])
async def test_a_failure_in_mid_stream_raises(
    async_client: openai.AsyncOpenAI, processes: Processes, behaviour: str
):
    processes.behave(behaviour)
    stream = await async_client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    said: list[str] = []

    async def read() -> None:
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError):
        await read()
    assert "".join(said) == expected_text(MESSAGES, 5)
