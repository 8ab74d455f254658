"""Dialects take the gateway's one path: failover, keep-alive, accounting, storage, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from prime_inference.adapters.files.key_store import LOCAL_TENANT, FileKeyStore
from prime_inference.domain import keys as api_keys
from prime_inference.domain.keys import ApiKey
from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.gateway.clocks import ClockLimits
from tests.wire.anthropic.judge import judge as judge_message
from tests.wire.responses.judge import Event
from tests.wire.responses.judge import judge as judge_response

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, Streamed, deployment, running
from .scripted_engine import DONE, delta, scripted, tool_delta, usage

SHORT = ClockLimits(connect=1, first_token=0.2, idle=0.2, tail=0.2, total=0.4)
BODIES: dict[str, dict[str, Any]] = {
    "/responses": {"input": "Tell me about a river"},
    "/messages": {"messages": MESSAGES, "max_tokens": 99},
}
BOTH = pytest.mark.parametrize("path", BODIES)


def events(streamed: Streamed) -> list[Event]:
    return [(chunk["type"], chunk) for chunk in streamed.chunks]


def said(path: str, streamed: Streamed) -> str:
    """The text of a legal stream."""
    if path == "/responses":
        return "".join(
            part["text"]
            for item in judge_response(events(streamed))["output"]
            for part in item["content"]
        )
    message = judge_message(events(streamed))
    assert message is not None
    return "".join(block["text"] for block in message["content"])


async def ask(gateway: RunningGateway, path: str, **fields: Any) -> Any:
    response = await gateway.post(path, {"model": MODEL, **BODIES[path], **fields})
    assert response.status_code == 200, response.text
    return response.json()


@BOTH
@pytest.mark.parametrize("behaviour", ["status-500", "reset", "silence", "cut-after-0", "html"])
async def test_a_failover_before_the_first_content_leaves_no_trace(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, path: str, behaviour: str
):
    gateway = await start_gateway(engine, spare, clocks=SHORT)
    engine.behave(behaviour)
    streamed = await gateway.stream(path, **BODIES[path])
    assert said(path, streamed) == expected_text(MESSAGES)
    engine.behave(behaviour)
    whole = await ask(gateway, path)
    assert whole["id"].partition("_")[0] in ("resp", "msg")
    assert len(spare.requests) == 2


@BOTH
@pytest.mark.parametrize(
    "behaviour", ["cut-after-5", "error-after-5", "malformed-at-6", "stall-after-5"]
)
async def test_a_failure_after_the_first_content_ends_the_sequence_legally(
    start_gateway: StartGateway, engine: MockEngine, path: str, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT)
    engine.behave(behaviour)
    streamed = await gateway.stream(path, **BODIES[path])
    if path == "/responses":
        final = judge_response(events(streamed))
        assert final["status"] == "failed"
        assert final["output"][0]["content"][0]["text"] == expected_text(MESSAGES, 5)
    else:
        assert judge_message(events(streamed)) is None
        assert streamed.chunks[-1]["type"] == "error"


@BOTH
async def test_a_quiet_connection_is_kept_open_and_may_still_fail_legally(
    start_gateway: StartGateway, engine: MockEngine, path: str
):
    gateway = await start_gateway(engine, clocks=SHORT, keep_alive_seconds=0.05)
    engine.behave("silence")
    streamed = await gateway.stream(path, **BODIES[path])
    assert streamed.status == 200
    assert streamed.comments > 0
    if path == "/responses":
        assert judge_response(events(streamed))["status"] == "failed"
    else:
        assert judge_message(events(streamed)) is None
        assert streamed.chunks[-1]["error"]["type"] == "timeout_error"


@BOTH
async def test_a_dialect_is_accounted_as_the_chat_that_it_is(
    gateway: RunningGateway, engine: MockEngine, path: str
):
    answer = await ask(gateway, path)
    streamed = await gateway.stream(path, **BODIES[path])
    assert said(path, streamed) == expected_text(MESSAGES)
    lines = await gateway.generations(2)
    assert {line["route"] for line in lines} == {"chat/completions"}
    assert {line["outcome"] for line in lines} == {"complete"}
    assert [line["usage"]["completion_tokens"] for line in lines] == [64, 64]
    assert answer["id"].endswith(lines[0]["id"])


@BOTH
async def test_reasoning_and_calls_come_through(start_gateway: StartGateway, path: str):
    pieces = [
        delta(role="assistant", content=""),
        delta(reasoning="Let me "),
        delta(reasoning_content="see &lt;."),
        delta(content="I look."),
        tool_delta({"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":'}}),
        tool_delta({"index": 0, "function": {"arguments": '"&lt;"}'}}),
        tool_delta({"index": 0, "id": "b", "function": {"name": "g", "arguments": ""}}),
        delta(finish="stop"),
        usage(3, 5),
        DONE,
    ]
    async with scripted(*pieces) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(path, **BODIES[path])
    if path == "/responses":
        output = judge_response(events(streamed))["output"]
        kinds = ["reasoning", "message", "function_call", "function_call"]
        assert [item["type"] for item in output] == kinds
        assert output[0]["content"][0]["text"] == "Let me see &lt;."
        assert [item["arguments"] for item in output[2:]] == ['{"x":"&lt;"}', "{}"]
    else:
        message = judge_message(events(streamed))
        assert message is not None
        assert message["stop_reason"] == "tool_use"
        kinds = ["thinking", "text", "tool_use", "tool_use"]
        assert [block["type"] for block in message["content"]] == kinds
        assert [block["input"] for block in message["content"][2:]] == [{"x": "&lt;"}, {}]
        assert message["usage"]["input_tokens"] == 3


async def test_a_call_that_no_message_can_hold_ends_it_in_an_error(start_gateway: StartGateway):
    pieces = [
        tool_delta({"index": 0, "id": "a", "function": {"name": "f", "arguments": "[1]"}}),
        delta(finish="tool_calls"),
        DONE,
    ]
    async with scripted(*pieces) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream("/messages", **BODIES["/messages"])
        (line,) = await gateway.generations(1)
    assert judge_message(events(streamed)) is None
    assert streamed.chunks[-1]["error"]["type"] == "api_error"
    assert (line["outcome"], line["error"]) == ("failed", "tool_call_broken")


# -- stored responses


async def test_another_key_of_the_same_server_finds_nothing(tmp_path: Path, engine: MockEngine):
    FileKeyStore.open(tmp_path, 0)
    keys = msgspec.json.decode((tmp_path / "keys.json").read_bytes(), type=list[ApiKey])
    text, key = api_keys.create(LOCAL_TENANT, name="another", created_at=0)
    (tmp_path / "keys.json").write_bytes(msgspec.json.encode([*keys, key]))
    async with running(tmp_path, [deployment(0, engine.base_url)]) as gateway:
        made = await ask(gateway, "/responses")
        other = {"authorization": f"Bearer {text}"}
        url = gateway.url(f"/responses/{made['id']}")
        assert (await gateway.client.get(url, headers=other)).status_code == 404
        assert (await gateway.client.delete(url, headers=other)).status_code == 404
        body = {"model": MODEL, "input": "More", "previous_response_id": made["id"]}
        refused = await gateway.client.post(gateway.url("/responses"), json=body, headers=other)
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        assert (await gateway.get(f"/responses/{made['id']}")).json() == made


async def test_an_answer_is_given_though_it_cannot_be_stored_and_says_so(
    gateway: RunningGateway,
):
    (gateway.state_dir / "responses.sqlite").write_bytes(b"this is no database" * 100)
    whole = await ask(gateway, "/responses")
    streamed = await gateway.stream("/responses", **BODIES["/responses"])
    for response in (whole, judge_response(events(streamed))):
        assert response["status"] == "completed"
        assert response["store"] is False
        assert "expires_at" not in response
    found = await gateway.get(f"/responses/{whole['id']}")
    assert found.status_code == 500
    assert "sqlite" not in found.text


async def test_a_client_that_left_has_nothing_stored(gateway: RunningGateway, engine: MockEngine):
    engine.behave("pace-20ms")
    body = {"model": MODEL, "stream": True, **BODIES["/responses"]}
    async with gateway.client.stream(
        "POST", gateway.url("/responses"), json=body, headers=gateway.authorization()
    ) as response:
        async for row in response.aiter_lines():
            if row.startswith("data: "):
                made = json.loads(row.removeprefix("data: "))["response"]["id"]
                break
    (line,) = await gateway.generations(1)
    assert line["outcome"] == "cancelled"
    assert (await gateway.get(f"/responses/{made}")).status_code == 404


async def test_what_a_query_asks_for_is_refused(gateway: RunningGateway):
    made = await ask(gateway, "/responses")
    items = f"/responses/{made['id']}/input_items"
    for path, param in {
        f"/responses/{made['id']}?include=x": "include",
        f"{items}?include[]=x": "include",
        f"{items}?limit=0": "limit",
        f"{items}?limit=101": "limit",
        f"{items}?limit=-1": "limit",
        f"{items}?limit=": "limit",
        f"{items}?order=up": "order",
        f"{items}?after=msg_1": "after",
        f"{items}?before=msg_1": "before",
    }.items():
        refused = await gateway.get(path)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param


# -- counting and errors


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_at_capacity_is_told_in_each_dialects_own_way(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    """The guard learns from such answers, so each has a gateway of its own."""
    engine.behave("status-503.retry-after-7")
    gateway = await start_gateway(engine)
    async with openai.AsyncOpenAI(
        base_url=gateway.base_url, api_key=gateway.key, max_retries=0
    ) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await client.responses.create(model=MODEL, input="Hello", stream=stream)
    assert caught.value.status_code == 503
    assert caught.value.code == "capacity_exhausted"
    assert int(caught.value.response.headers["retry-after"]) > 0
    gateway = await start_gateway(engine)
    async with anthropic.AsyncAnthropic(
        base_url=gateway.base_url.removesuffix("/v1"), api_key=gateway.key, max_retries=0
    ) as other:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await other.messages.create(
                model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "Hello"}],
                stream=stream,
            )  # fmt: skip
    assert refused.value.status_code == 529
    assert refused.value.type == "overloaded_error"
    assert int(refused.value.response.headers["retry-after"]) > 0


async def test_an_engine_without_a_tokenizer_is_refused_to_count(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, kinds=["openai"])
    refused = await gateway.post("/messages/count_tokens", {"model": MODEL, "messages": MESSAGES})
    assert refused.status_code == 404
    assert refused.json()["error"]["type"] == "not_found_error"
    assert "tokenizer" in refused.json()["error"]["message"]


async def test_a_count_is_asked_of_the_next_deployment_if_one_is_down(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway("http://127.0.0.1:1/v1", engine)
    counted = await gateway.post("/messages/count_tokens", {"model": MODEL, "messages": MESSAGES})
    whole = await ask(gateway, "/messages")
    assert counted.json() == {"input_tokens": whole["usage"]["input_tokens"]}


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/messages", 405, "invalid_request_error"),
        ("POST", "/messages/nothing", 404, "not_found_error"),
        ("POST", "/messages", 400, "invalid_request_error"),
    ],
)
async def test_errors_below_messages_have_anthropics_shape(
    gateway: RunningGateway, method: str, path: str, status: int, kind: str
):
    response = await gateway.client.request(
        method, gateway.url(path), headers=gateway.authorization()
    )
    assert response.status_code == status
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == response.headers["request-id"]
