"""What a client sees when the engine behind the gateway misbehaves: never a silent cut."""

from __future__ import annotations

import pytest

from prime_inference.engines.mock import MockEngine, expected_text, expected_usage
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, RunningGateway, Streamed, eventually
from .scripted_engine import ScriptedEngine, answer

SHORT = ClockLimits(connect=1, first_token=0.2, idle=0.2, tail=0.2, total=0.4)

BEFORE_AN_ANSWER = {
    "status-500": (502, "upstream_failed", "provider_unavailable"),
    "status-502.html": (502, "upstream_failed", "provider_unavailable"),
    "status-504": (502, "upstream_failed", "provider_unavailable"),
    "status-401": (502, "upstream_failed", "provider_unavailable"),
    "status-403": (502, "upstream_failed", "provider_unavailable"),
    "status-404": (502, "upstream_failed", "provider_unavailable"),
    "status-429": (503, "capacity_exhausted", "provider_overloaded"),
    "status-503": (503, "capacity_exhausted", "provider_overloaded"),
    "status-400": (400, "refused_by_model", "invalid_request"),
    "status-422": (400, "refused_by_model", "invalid_request"),
    "content-filter": (400, "refused_by_model", "invalid_request"),
    "context-length": (400, "context_length_exceeded", "context_length_exceeded"),
    "reset": (502, "upstream_unreachable", "provider_unavailable"),
    "close": (502, "upstream_unreachable", "provider_unavailable"),
    "not-http": (502, "upstream_malformed", "provider_unavailable"),
    "html": (502, "upstream_malformed", "provider_unavailable"),
    "garbage": (502, "upstream_malformed", "provider_unavailable"),
    "silence": (504, "upstream_timeout", "timeout"),
    "slow-head-5s.status-500": (504, "upstream_timeout", "timeout"),
}
"""Behaviour: status, code and error type."""

IN_MID_ANSWER = {
    "cut-after-5": "upstream_cut",
    "reset-after-5": "upstream_cut",
    "end-after-5": "upstream_cut",
    "stall-after-5": "upstream_timeout",
    "error-after-5": "upstream_failed",
    "malformed-at-6": "upstream_malformed",
    "huge-at-6": "upstream_malformed",
}
"""Behaviour and the code of the error event that follows five tokens."""

FRAMINGS = ["crlf", "cr", "comments", "chunks-1", "chunks-7", "crlf.chunks-1", "cr.chunks-1"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("behaviour", BEFORE_AN_ANSWER)
async def test_a_fault_before_the_answer_is_an_http_status_with_a_typed_error(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str, stream: bool
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    response = await gateway.chat(stream=stream)
    status, code, error_type = BEFORE_AN_ANSWER[behaviour]
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["metadata"]["error_type"] == error_type


def assert_five_tokens_and_an_error(streamed: Streamed, code: str) -> None:
    assert streamed.status == 200
    assert streamed.text() == expected_text(MESSAGES, 5)
    assert not streamed.done
    assert streamed.error is not None
    assert streamed.error["code"] == code
    assert streamed.chunks[-1]["error"] is not None
    assert streamed.finish_reasons()[-1] == "error"
    assert set(streamed.finish_reasons()[:-1]) == {None}


@pytest.mark.parametrize("behaviour", IN_MID_ANSWER)
async def test_a_fault_in_mid_answer_is_one_typed_event_and_no_done(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    assert_five_tokens_and_an_error(await gateway.stream(), IN_MID_ANSWER[behaviour])


@pytest.mark.parametrize("behaviour", IN_MID_ANSWER)
async def test_a_fault_in_mid_answer_of_a_whole_answer_is_an_http_status(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    response = await gateway.chat()
    if behaviour == "huge-at-6":  # one event of a stream is large; a whole answer has none
        assert response.status_code == 200
    else:
        assert response.status_code in (502, 504)
        assert "choices" not in response.json()


async def test_an_answer_without_a_finish_reason_is_never_taken_for_whole(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("no-finish")
    streamed = await gateway.stream()
    assert streamed.error is not None
    assert streamed.error["code"] == "upstream_cut"
    assert not streamed.done
    assert (await gateway.chat()).status_code == 502


@pytest.mark.parametrize("behaviour", ["no-done", "end-without-done"])
async def test_an_answer_without_done_is_finished_all_the_same(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    streamed = await gateway.stream(stream_options={"include_usage": True})
    assert streamed.text() == expected_text(MESSAGES)
    assert streamed.finish_reasons()[-1] == "stop"
    assert streamed.chunks[-1]["usage"]["total_tokens"] == sum(expected_usage(MESSAGES))
    assert streamed.done
    assert (await gateway.generations(1))[0]["outcome"] == "complete"


async def test_an_answer_without_usage_is_whole_and_counted_as_unmeasured(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("no-usage")
    streamed = await gateway.stream(stream_options={"include_usage": True})
    assert streamed.done
    assert all(chunk["usage"] is None for chunk in streamed.chunks)
    (generation,) = await gateway.generations(1)
    assert generation["usage"]["source"] == "counted"
    assert generation["usage"]["completion_tokens"] == expected_usage(MESSAGES)[1]
    assert await gateway.metric("prime_usage_unmeasured_total") == 1


@pytest.mark.parametrize("behaviour", FRAMINGS)
async def test_a_stream_is_the_same_in_whatever_way_its_events_are_framed(
    gateway: RunningGateway, engine: MockEngine, behaviour: str
):
    engine.behave(behaviour)
    streamed = await gateway.stream(stream_options={"include_usage": True})
    assert streamed.text() == expected_text(MESSAGES)
    assert streamed.chunks[-1]["usage"]["total_tokens"] == sum(expected_usage(MESSAGES))
    assert streamed.done
    assert streamed.comments == 0  # the engine's own comments are not passed on


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_engine_that_closes_its_connection_after_an_answer_serves_the_next(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("close-after")
    for _ in range(5):
        assert (await gateway.chat(stream=stream)).status_code == 200


@pytest.mark.parametrize("behaviour", ["length-plus-9", "length-minus-9"])
async def test_a_whole_answer_with_a_wrong_length_is_an_error(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    assert (await gateway.chat()).status_code in (502, 504)
    engine.behave("")
    assert (await gateway.chat()).status_code == 200


async def test_an_engine_that_is_not_there_is_a_502(start_gateway: StartGateway):
    gateway = await start_gateway("http://127.0.0.1:1/v1")
    for stream in (False, True):
        response = await gateway.chat(stream=stream)
        assert response.status_code == 502
        assert response.json()["error"]["code"] == "upstream_unreachable"


async def test_an_engine_that_comes_back_is_used_again(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine)
    port = int(engine.base_url.rpartition(":")[2].removesuffix("/v1"))
    assert (await gateway.chat()).status_code == 200
    await engine.stop()
    assert (await gateway.chat()).status_code == 502
    await engine.start(port=port)
    assert (await gateway.chat()).status_code == 200


async def test_the_text_of_an_engines_server_error_is_not_passed_on(start_gateway: StartGateway):
    secret = "CUDA error in /srv/tenant-7/model.py on 10.0.0.7"
    async with ScriptedEngine([answer({"error": {"message": secret}}, 500)]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat()
    assert response.status_code == 502
    assert "10.0.0.7" not in response.text


async def test_the_text_of_an_engines_refusal_is_passed_on(start_gateway: StartGateway):
    refusal = {"error": {"message": "temperature and top_p cannot both be 0"}}
    async with ScriptedEngine([answer(refusal, 400)]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat()
    assert response.status_code == 400
    assert "temperature and top_p cannot both be 0" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "maximum context length is 10", "code": 400},
        {"error": {"message": "maximum context length is 10 tokens", "type": "BadRequestError"}},
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 12,
                "n_ctx": 10,
            }
        },
    ],
    ids=["older-vllm", "vllm", "llama.cpp"],
)
async def test_every_engines_words_for_too_long_a_prompt_become_one_error(
    start_gateway: StartGateway, body: dict[str, object]
):
    async with ScriptedEngine([answer(body, 400)]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat()
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "maximum context length is" in error["message"]


@pytest.mark.parametrize(
    "body", [b"", b"null", b'{"error": "no"}', b"[" * 9999, b"\xff", b"x" * 99999]
)
async def test_a_refusal_in_no_known_shape_is_a_refusal(start_gateway: StartGateway, body: bytes):
    async with ScriptedEngine([answer(body, 400)]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat()
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "refused_by_model"


async def test_the_engine_is_told_when_an_attempt_is_given_up(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave("stall-after-5")
    await gateway.stream()
    await eventually(lambda: engine.connections == set())
