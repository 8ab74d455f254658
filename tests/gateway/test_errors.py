"""Bad input gets a clear, typed error that names what is wrong."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from prime_inference.domain import keys
from prime_inference.engines.mock import MockEngine

from .running import MESSAGES, MODEL, RunningGateway, chat

CHAT = "/chat/completions"


def assert_error(response: Any, status: int, code: str, param: str | None = None) -> str:
    """Check the whole shape of an error; returns its message."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert len(response.headers["x-request-id"]) == 24
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert {"message", "type", "param", "code", "metadata"} == set(error)
    assert isinstance(error["type"], str)
    assert error["code"] == code
    assert error["param"] == param
    assert error["metadata"]["error_type"]
    message = error["message"]
    assert isinstance(message, str)
    assert message
    return message


# -- keys


@pytest.mark.parametrize("path", [CHAT, "/completions", "/embeddings"])
@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Basic dXNlcjpwYXNz", "Bearer sk-123", "Bearer pi_live_x", "pi_live_x"],
)
async def test_a_request_without_a_valid_key_is_refused(
    gateway: RunningGateway, engine: MockEngine, path: str, authorization: str | None
):
    headers = {} if authorization is None else {"authorization": authorization}
    response = await gateway.client.post(gateway.url(path), json=chat(), headers=headers)
    assert_error(response, 401, "invalid_api_key")
    assert response.json()["error"]["type"] == "authentication_error"
    assert engine.requests == []


async def test_a_missing_key_is_told_how_to_be_sent(gateway: RunningGateway):
    response = await gateway.client.post(gateway.url(CHAT), json=chat())
    assert "Authorization: Bearer" in response.json()["error"]["message"]


def mistyped(key: str) -> list[str]:
    """The key with one character off, two swapped, one lost, one more, or in another case."""
    swap = next(place for place in range(30, 60) if key[place] != key[place + 1])
    return [
        key[:20] + ("a" if key[20] != "a" else "b") + key[21:],
        key[:swap] + key[swap + 1] + key[swap] + key[swap + 2 :],
        key[:-1],
        key + "0",
        key.swapcase(),
        key.replace("pi_live_", "pi_test_"),
        f'"{key}"',
    ]


async def test_a_mistyped_key_is_refused_and_not_repeated(gateway: RunningGateway):
    for wrong in mistyped(gateway.key):
        response = await gateway.client.post(
            gateway.url(CHAT), json=chat(), headers={"authorization": f"Bearer {wrong}"}
        )
        assert_error(response, 401, "invalid_api_key")
        assert wrong not in response.text


async def test_a_well_formed_key_that_was_not_made_here_is_refused(gateway: RunningGateway):
    foreign, _ = keys.create("somebody", name="x", created_at=0)
    body = "_".join([*gateway.key.split("_")[:3], foreign.split("_")[3]])
    forged = f"{body}_{keys.checksum(body)}"  # a key id of ours, with another secret
    assert keys.parse(forged) == keys.parse(gateway.key)
    for wrong in (foreign, forged):
        response = await gateway.client.post(
            gateway.url(CHAT), json=chat(), headers={"authorization": f"Bearer {wrong}"}
        )
        assert_error(response, 401, "invalid_api_key")


async def test_the_scheme_is_read_in_any_case(gateway: RunningGateway):
    response = await gateway.client.post(
        gateway.url(CHAT), json=chat(), headers={"authorization": f"bearer  {gateway.key}"}
    )
    assert response.status_code == 200


async def test_a_key_in_the_query_string_is_no_key(gateway: RunningGateway):
    for name in ("api_key", "key", "access_token", "authorization"):
        response = await gateway.client.post(
            gateway.url(CHAT), json=chat(), params={name: gateway.key}
        )
        assert_error(response, 401, "invalid_api_key")


async def test_a_request_is_not_decoded_for_a_stranger(gateway: RunningGateway):
    response = await gateway.client.post(gateway.url(CHAT), content=b"{nonsense")
    assert_error(response, 401, "invalid_api_key")


# -- models


@pytest.mark.parametrize("name", ["acme/echo1", "ACME/Echo-1", "echo-1", "acme/eco-1"])
async def test_an_unknown_model_is_told_the_nearest_names(gateway: RunningGateway, name: str):
    message = assert_error(await gateway.chat(model=name), 404, "model_not_found", "model")
    assert name in message
    assert MODEL in message


async def test_a_model_like_no_other_is_told_where_the_models_are(gateway: RunningGateway):
    message = assert_error(await gateway.chat(model="zzzzzz"), 404, "model_not_found", "model")
    assert "/models" in message


async def test_an_unknown_model_in_a_stream_is_an_http_status(gateway: RunningGateway):
    assert_error(await gateway.chat(model="no", stream=True), 404, "model_not_found", "model")


# -- prompts


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_too_long_a_prompt_is_refused_in_the_words_that_clients_look_for(
    gateway: RunningGateway, stream: bool
):
    long = [{"role": "user", "content": "word " * 5000}]
    response = await gateway.chat(messages=long, stream=stream)
    message = assert_error(response, 400, "context_length_exceeded", "messages")
    assert "This model's maximum context length is 4096 tokens" in message
    error_type = response.json()["error"]["metadata"]["error_type"]
    assert error_type == "context_length_exceeded"


async def test_more_answer_than_the_model_can_give_is_refused_by_name(gateway: RunningGateway):
    for name in ("max_tokens", "max_completion_tokens"):
        message = assert_error(await gateway.chat(**{name: 4097}), 400, "invalid_value", name)
        assert "4096" in message


# -- JSON


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model": acme}',
        b"{'model': 'x'}",
        b'{"model":"\xff\xfe"}',
        b'{"model":"a\\ud800"}',
        b'{"model": NaN}',
        b'{"model": Infinity}',
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/completions", "/embeddings"])
async def test_what_is_no_json_is_refused_as_such(gateway: RunningGateway, path: str, body: bytes):
    message = assert_error(await gateway.post(path, body), 400, "invalid_value")
    assert "JSON" in message


async def test_nothing_may_follow_the_object(gateway: RunningGateway):
    body = json.dumps(chat()).encode()
    message = assert_error(await gateway.post(CHAT, body + b" {}"), 400, "invalid_value")
    assert "JSON" in message


@pytest.mark.parametrize("body", [b"[]", b"null", b'"text"', b"7", b"true"])
async def test_json_that_is_no_object_is_refused(gateway: RunningGateway, body: bytes):
    message = assert_error(await gateway.post(CHAT, body), 400, "invalid_value")
    assert "object" in message


WRONG_TYPES: list[tuple[dict[str, Any], str]] = [
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"stop": 5}, "stop"),
    ({"model": 5}, "model"),
    ({"model": ""}, "model"),
    ({"messages": {}}, "messages"),
    ({"messages": ["hello"]}, "messages[0]"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [*MESSAGES, {"role": "user", "content": 5}]}, "messages[1].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "messages[0].content[0].type",
    ),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ({"response_format": "json"}, "response_format"),
    ({"logit_bias": {"5": 101}}, "logit_bias[...]"),
    ({"stream": True, "stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
]


async def test_a_wrong_type_is_told_by_the_path_of_its_field(gateway: RunningGateway):
    for fields, param in WRONG_TYPES:
        message = assert_error(await gateway.chat(**fields), 400, "invalid_value", param)
        assert f"'{param}'" in message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": MESSAGES}, "model"),
        ({"model": MODEL}, "messages"),
        ({"model": MODEL, "messages": [{"role": "user"}]}, "messages[0].content"),
        ({"model": MODEL, "messages": [{"content": "x"}]}, "messages[0].role"),
        (chat(tools=[{"type": "function"}]), "tools[0].function"),
        (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    ],
)
async def test_a_missing_field_is_named(gateway: RunningGateway, body: object, param: str):
    message = assert_error(await gateway.post(CHAT, body), 400, "invalid_value", param)
    assert param in message


# -- parameters


@pytest.mark.parametrize(
    ("name", "near"),
    [("temprature", "temperature"), ("max_token", "max_tokens"), ("top-p", "top_p")],
)
async def test_an_unknown_parameter_is_told_the_nearest_name(
    gateway: RunningGateway, name: str, near: str
):
    message = assert_error(await gateway.chat(**{name: 1}), 400, "unknown_parameter", name)
    assert f"'{name}'" in message
    assert near in message.partition("Did you mean")[2]


async def test_an_unknown_field_deep_in_a_message_is_told_by_its_path(gateway: RunningGateway):
    messages = [*MESSAGES, {"role": "user", "content": "x", "colour": "red"}]
    response = await gateway.chat(messages=messages)
    assert_error(response, 400, "unknown_parameter", "messages[1].colour")


async def test_a_parameter_that_makes_no_sense_alone_is_refused_by_name(gateway: RunningGateway):
    alone: dict[str, Any] = {
        "stream_options": {"include_usage": True},
        "top_logprobs": 2,
        "tool_choice": "required",
    }
    for name, value in alone.items():
        assert_error(await gateway.chat(**{name: value}), 400, "invalid_value", name)


async def test_a_tool_choice_names_a_tool_that_is_there(gateway: RunningGateway):
    tool = {"type": "function", "function": {"name": "weather"}}
    choice = {"type": "function", "function": {"name": "wheather"}}
    response = await gateway.chat(tools=[tool], tool_choice=choice)
    assert_error(response, 400, "invalid_value", "tool_choice.function.name")


async def test_a_message_is_never_repeated_at_length(gateway: RunningGateway):
    long = "x" * 100_000
    tool = {"type": "function", "function": {"name": "weather"}}
    bodies: list[dict[str, Any]] = [
        {long: 1},
        {"service_tier": long},
        {"model": long},
        {"tools": [tool], "tool_choice": {"function": {"name": long}}},
        {"messages": [{"role": long, "content": ""}]},
        {"messages": [{"role": "user", "content": "", long: 1}]},
    ]
    for fields in bodies:
        response = await gateway.post(CHAT, json.dumps(chat(**fields)).encode())
        assert response.status_code == 400
        assert len(response.content) < 4096


# -- size


async def test_an_oversize_body_is_refused_and_the_client_can_read_why(gateway: RunningGateway):
    body = json.dumps(chat(messages=[{"role": "user", "content": "x" * 21 * 1024 * 1024}])).encode()
    response = await gateway.post(CHAT, body)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"
    assert "20971520 bytes" in response.json()["error"]["message"]


async def test_an_oversize_body_of_unknown_length_is_refused(gateway: RunningGateway):
    async def pieces():
        for _ in range(24):
            yield b"x" * 1024 * 1024

    response = await gateway.client.post(
        gateway.url(CHAT), content=pieces(), headers=gateway.authorization()
    )
    assert response.status_code == 413


async def test_a_large_body_is_taken(gateway: RunningGateway):
    messages = [{"role": "user", "content": "x" * 10 * 1024 * 1024}]
    assert (await gateway.chat(messages=messages)).status_code == 200


async def test_a_stranger_cannot_make_the_gateway_read_a_large_body(gateway: RunningGateway):
    head = (
        f"POST /api/v1{CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000\r\n"
        "authorization: Bearer pi_live_x\r\n\r\n"
    )
    async with gateway.connect() as (reader, writer):
        writer.write(head.encode())
        assert b"401" in await reader.readline()


# -- paths and methods


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api/v1",
        "/api/v1/chat",
        "/v1/chat/completions",
        "/api/v1/chat/completions/",
        "/metrics",
    ],
)
async def test_a_path_that_is_not_there_is_told_where_to_look(gateway: RunningGateway, path: str):
    root = gateway.base_url.removesuffix("/api/v1")
    response = await gateway.client.post(
        f"{root}{path}", json=chat(), headers=gateway.authorization()
    )
    message = assert_error(response, 404, "not_found")
    assert "/api/v1" in message


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_a_wrong_method_is_told_the_right_one(gateway: RunningGateway, method: str):
    response = await gateway.client.request(
        method, gateway.url(CHAT), headers=gateway.authorization()
    )
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    if method == "HEAD":
        assert response.content == b""
    else:
        assert "POST" in assert_error(response, 405, "method_not_allowed")


async def test_a_method_that_does_not_exist_is_a_typed_error(gateway: RunningGateway):
    response = await gateway.client.request("BREW", gateway.url(CHAT))
    assert_error(response, 501, "method_unknown")


async def test_headers_that_are_too_large_are_a_typed_error(gateway: RunningGateway):
    response = await gateway.post(CHAT, chat(), **{"x-large": "x" * 40_000})
    assert "32768 bytes" in assert_error(response, 431, "headers_too_large")
    many = {f"x-{number}": "x" for number in range(120)}
    response = await gateway.post(CHAT, chat(), **many)
    assert "100 fields" in assert_error(response, 431, "headers_too_large")


async def test_a_url_that_is_too_long_is_a_typed_error(gateway: RunningGateway):
    response = await gateway.client.get(gateway.url("/models/" + "x" * 10_000))
    assert "8192 bytes" in assert_error(response, 414, "url_too_long")


# -- what is refused before a handler sees it


EARLY = {
    "a stranger's large body": (
        b"POST /api/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n",
        401,
        "invalid_api_key",
    ),
    "no host": (b"GET /api/v1/models HTTP/1.1\r\n\r\n", 400, "invalid_value"),
    "no method": (b"BREW /api/v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 501, "method_unknown"),
}


@pytest.mark.parametrize("what", EARLY)
async def test_an_early_refusal_has_a_request_id_and_is_counted(gateway: RunningGateway, what: str):
    request, status, code = EARLY[what]
    answers = [await gateway.exchange(request) for _ in range(2)]
    ids = [re.search(rb"\r\nx-request-id: ([0-9a-f]{24})\r\n", answer) for answer in answers]
    first, second = [found[1] for found in ids if found]
    assert first != second
    assert await gateway.metric("prime_error_answers_total", status=str(status), code=code) == 2


async def test_a_body_that_is_too_large_has_a_request_id_and_is_counted(gateway: RunningGateway):
    answer = await gateway.exchange(
        gateway.request(CHAT).replace(b"content-length: 0", b"content-length: 99999999")
    )
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"\r\nx-request-id: " in answer
    assert await gateway.metric("prime_error_answers_total", code="payload_too_large") == 1


async def test_every_error_answer_is_counted_by_status_and_code(gateway: RunningGateway):
    await gateway.post(CHAT, b"{")
    await gateway.post(CHAT, chat(), authorization="Bearer pi_live_no")
    await gateway.chat(model="acme/nothing")
    await gateway.chat()

    async def count(**labels: str) -> float:
        return await gateway.metric("prime_error_answers_total", **labels)

    assert await count() == 3
    assert await count(status="400", code="invalid_value") == 1
    assert await count(status="401", code="invalid_api_key") == 1
    assert await count(status="404", code="model_not_found") == 1


@pytest.mark.parametrize("path", ["/models", f"/models/{MODEL}", "/openapi.json"])
async def test_head_is_get_without_the_body(gateway: RunningGateway, path: str):
    got = await gateway.client.get(gateway.url(path))
    head = await gateway.client.head(gateway.url(path))
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize("path", ["/models", f"/models/{MODEL}"])
async def test_a_catalogue_path_takes_get_only(gateway: RunningGateway, path: str):
    response = await gateway.post(path, {})
    assert_error(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "GET, HEAD"
