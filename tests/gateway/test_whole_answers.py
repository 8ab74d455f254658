"""Whole answers: as the engine gave them, or put together from its stream."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine, expected_text, expected_usage
from prime_inference.gateway import whole_attempts
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, chat, eventually

KINDS = ["vllm", "llama.cpp"]  # the second is asked for streams only
SHORT = ClockLimits(connect=1, first_token=0.2, idle=0.2, tail=0.2, total=0.5)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest.fixture(params=KINDS)
async def whole(
    request: pytest.FixtureRequest, start_gateway: StartGateway, engine: MockEngine
) -> RunningGateway:
    """A gateway in front of an engine of each kind."""
    return await start_gateway(engine, kinds=[request.param], clocks=SHORT)


async def test_a_chat_completion_has_the_shape_of_openais(whole: RunningGateway):
    response = await whole.chat(max_tokens=9)
    answer = response.json()
    prompt, completion = expected_usage(MESSAGES, 9)
    assert {"id", "object", "created", "model", "choices", "usage"} == set(answer)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == MODEL
    assert answer["id"] == response.headers["x-generation-id"]
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": expected_text(MESSAGES, 9),
                "refusal": None,
            },
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_a_completion_has_the_shape_of_openais(whole: RunningGateway):
    response = await whole.post(
        "/completions", {"model": MODEL, "prompt": ["one"], "max_tokens": 5}
    )  # fmt: skip
    answer = response.json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, expected_text("one", 5), "length"),
    ]
    assert answer["usage"]["completion_tokens"] == 5


async def test_several_prompts_have_a_choice_each(start_gateway: StartGateway, engine: MockEngine):
    gateway = await start_gateway(engine)
    body = {"model": MODEL, "prompt": ["one", "two"], "max_tokens": 5}
    answer = (await gateway.post("/completions", body)).json()
    assert [(c["index"], c["text"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, expected_text("one", 5), "length"),
        (1, expected_text("two", 5), "length"),
    ]
    assert answer["usage"]["completion_tokens"] == 10


async def test_logprobs_come_with_their_tokens(whole: RunningGateway):
    answer = (await whole.chat(max_tokens=3, logprobs=True, top_logprobs=2)).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == expected_text(MESSAGES, 3)
    assert {len(token["top_logprobs"]) for token in content} == {2}


async def test_an_empty_answer_is_an_answer(whole: RunningGateway, engine: MockEngine):
    engine.behave("answer-0")
    answer = (await whole.chat()).json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["choices"][0]["finish_reason"] == "stop"


async def test_usage_is_accounted_exactly(whole: RunningGateway):
    await whole.chat(max_tokens=9)
    (generation,) = await whole.generations(1)
    prompt, completion = expected_usage(MESSAGES, 9)
    assert generation["streamed"] is False
    assert generation["usage"]["prompt_tokens"] == prompt
    assert generation["usage"]["completion_tokens"] == completion
    assert generation["usage"]["source"] == "upstream"


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("status-500", 502),
        ("status-429", 503),
        ("context-length", 400),
        ("reset", 502),
        ("html", 502),
        ("garbage", 502),
        ("silence", 504),
        ("stall-after-5", 504),
        ("cut-after-5", 502),
        ("reset-after-5", 502),
        ("malformed-at-6", 502),
        ("error-after-5", 502),
        ("no-finish", 502),
    ],
)
async def test_a_fault_is_an_error_and_never_half_an_answer(
    whole: RunningGateway, engine: MockEngine, behaviour: str, status: int
):
    engine.behave(behaviour)
    response = await whole.chat()
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    assert response.json()["error"]["code"]


@pytest.mark.parametrize("behaviour", ["no-done", "end-without-done", "crlf", "cr", "chunks-1"])
async def test_what_is_unusual_about_a_stream_is_no_business_of_the_client(
    whole: RunningGateway, engine: MockEngine, behaviour: str
):
    engine.behave(behaviour)
    answer = (await whole.chat()).json()
    assert answer["choices"][0]["message"]["content"] == expected_text(MESSAGES)
    assert answer["usage"]["total_tokens"] == sum(expected_usage(MESSAGES))


async def test_half_an_answer_is_thrown_away_for_another_deployments_whole_one(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, kinds=["llama.cpp", "vllm"], clocks=SHORT)
    engine.behave("cut-after-20")
    answer = (await gateway.chat()).json()
    assert answer["choices"][0]["message"]["content"] == expected_text(MESSAGES)
    (generation,) = await gateway.generations(1)
    assert generation["deployment"] == "engine-1"
    assert generation["usage"]["completion_tokens"] == 64


async def test_a_client_that_leaves_stops_the_engine(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, kinds=["llama.cpp"])
    engine.behave("pace-10ms.answer-2000")
    async with gateway.connect() as (_, writer):
        writer.write(gateway.request("/chat/completions", chat()))
        await eventually(lambda: bool(engine.requests) and engine.requests[0].tokens > 5)
    await eventually(lambda: engine.requests[0].outcome == "client left", seconds=1.0)
    (generation,) = await gateway.generations(1)
    assert generation["outcome"] == "cancelled"


async def test_tool_calls_come_whole(start_gateway: StartGateway, engine: MockEngine):
    gateway = await start_gateway(engine)
    engine.behave("calls-2")
    (choice,) = (await gateway.chat(tools=[TOOL])).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    for call in choice["message"]["tool_calls"]:
        assert set(call) == {"id", "type", "function"}
        assert call["function"]["name"] == "weather"
        assert call["function"]["arguments"].startswith('{"city"')


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": True, "top_logprobs": 20}])
async def test_an_answer_that_was_asked_to_be_too_large_is_the_requests_fault(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    monkeypatch: pytest.MonkeyPatch,
    logprobs: dict[str, Any],
):
    """One client's wish took both deployments from everybody, after four generations."""
    monkeypatch.setattr(whole_attempts, "MAX_ANSWER_BYTES", 2000)
    gateway = await start_gateway(engine, spare)
    engine.behave("answer-2000")
    refused = await gateway.chat(max_tokens=1000, **logprobs)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "answer_too_large"
    assert spare.requests == []


async def test_an_answer_larger_than_anybody_asked_for_is_the_engines_fault(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(whole_attempts, "MAX_ANSWER_BYTES", 600)
    gateway = await start_gateway(engine, spare)
    engine.behave("huge-at-2")
    assert (await gateway.chat(max_tokens=4)).status_code == 200
    assert len(engine.requests) == len(spare.requests) == 1
