"""What somebody would try who means no good."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, chat
from .scripted_engine import DONE, delta, scripted

CHAT = "/chat/completions"


# -- what reaches the engine

ALLOWED_HEADERS = {
    "host", "content-type", "content-length", "x-request-id", "x-dynamo-session-id",
}  # fmt: skip
SMUGGLED_HEADERS = [
    "x-mock-behaviour: status-500",
    "X-Request-Id: chosen-by-the-client",
    "x-data-parallel-rank: 3",
    "x-session-id: somebody-elses",
    "x-forwarded-for: 127.0.0.1",
    "forwarded: for=127.0.0.1",
    "x-http-method-override: DELETE",
    "cookie: a=b",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "connection: authorization, content-length",
    "te: trailers",
    "proxy-authorization: Basic YTpi",
    "authorization-extra: x",
    "content-encoding: identity",
    "x-evil: a\tb",
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_no_header_of_the_clients_reaches_the_engine(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    body = chat(stream=stream)
    async with gateway.connect() as (reader, writer):
        writer.write(gateway.request(CHAT, body, *SMUGGLED_HEADERS))
        assert b"200 OK" in await reader.readline()
    (seen,) = engine.requests
    assert {name.decode().lower() for name, _ in seen.headers} <= ALLOWED_HEADERS
    assert seen.header("x-request-id") != "chosen-by-the-client"
    raw = b"".join(name + value for name, value in seen.headers)
    assert gateway.key.encode() not in raw
    assert b"somebody-elses" not in raw


SMUGGLED_FIELDS: dict[str, Any] = {
    "add_generation_prompt": False,
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "bootstrap_host": "10.0.0.1",
    "cache_salt": "somebody-elses",
    "chat_template": "{{ cycler.__init__.__globals__ }}",
    "chat_template_kwargs": {"enable_thinking": False},
    "continue_final_message": True,
    "data_parallel_rank": 1,
    "documents": [{"text": "x"}],
    "extra_body": {"ignore_eos": True},
    "guided_choice": ["a"],
    "guided_decoding_backend": "outlines",
    "guided_grammar": 'root ::= "a"',
    "guided_json": {"type": "object"},
    "guided_regex": "(a+)+$",
    "ignore_eos": True,
    "include_stop_str_in_output": True,
    "kv_transfer_params": {"do_remote_decode": True},
    "length_penalty": 2,
    "logits_processors": ["os.system"],
    "lora_path": "/etc/passwd",
    "lora_request": {"lora_path": "/etc/passwd"},
    "min_tokens": 4096,
    "mm_processor_kwargs": {"max_pixels": 10**12},
    "nvext": {"annotations": ["x"]},
    "priority": -1000,
    "prompt_embeds": "gASVAAAA",
    "prompt_logprobs": 100,
    "request_id": "somebody-elses",
    "return_hidden_states": True,
    "return_token_ids": True,
    "skip_special_tokens": False,
    "stop_token_ids": [1],
    "structured_outputs": {"regex": "(a+)+$"},
    "timings_per_token": True,
    "truncate_prompt_tokens": -1,
    "use_beam_search": True,
    "vllm_xargs": {"a": 1},
    "__class__": "x",
    "": 1,
}


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (CHAT, {"messages": MESSAGES}),
        ("/completions", {"prompt": "x"}),
        ("/embeddings", {"input": "x"}),
    ],
)
async def test_no_field_reaches_the_engine_that_the_api_does_not_have(
    gateway: RunningGateway, engine: MockEngine, path: str, content: dict[str, Any]
):
    for name, value in SMUGGLED_FIELDS.items():
        response = await gateway.post(path, {"model": MODEL, **content, name: value})
        assert response.status_code == 400, name
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", name)
    assert engine.requests == []


async def test_the_engine_is_sent_what_was_understood_and_not_what_was_written(
    gateway: RunningGateway, engine: MockEngine
):
    twice = (
        b'{"model":"acme/nothing","model":"acme/echo-1","messages":[],"n":9,"n":1,'
        b'"messages":[{"role":"user","role":"user","content":"a","content":"b"}],"max_tokens":5}'
    )
    response = await gateway.post(CHAT, twice)
    if response.status_code == 200:
        assert engine.requests[-1].json == {
            "model": "engine-name",
            "messages": [{"role": "user", "content": "b"}],
            "max_tokens": 5,
        }
        assert engine.requests[-1].body.count(b'"model"') == 1
    else:
        assert response.status_code == 400


async def test_the_engine_knows_the_model_by_its_own_name(
    gateway: RunningGateway, engine: MockEngine
):
    response = await gateway.chat()
    assert engine.requests[-1].json["model"] == "engine-name"
    assert response.json()["model"] == MODEL
    assert "engine-name" not in response.text


# -- what comes back from the engine


async def test_no_header_of_the_engines_reaches_the_client(gateway: RunningGateway):
    for stream in (False, True):
        response = await gateway.chat(stream=stream)
        assert set(response.headers) <= {
            "cache-control", "content-length", "content-type", "date", "transfer-encoding",
            "x-accel-buffering", "x-generation-id", "x-prime-pool", "x-request-id",
        }  # fmt: skip


async def test_no_field_of_the_engines_reaches_the_client_that_the_api_does_not_have(
    start_gateway: StartGateway,
):
    choice = {
        "index": 0,
        "delta": {"content": "hi", "secret": "x"},
        "secret": "x",
        "token_ids": [1],
    }
    event = b"data: %b\n\n" % json.dumps(
        {"id": "engine-id", "system_fingerprint": "host-7", "secret": "x", "choices": [choice],
         "kv_transfer_params": {"host": "10.0.0.7"}, "prompt_token_ids": [1]}
    ).encode()  # fmt: skip
    async with scripted(event, delta("stop"), DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
    assert streamed.text() == "hi"
    for secret in (b"secret", b"host-7", b"10.0.0.7", b"token_ids", b"engine-id"):
        assert secret not in streamed.raw


async def test_a_newline_in_an_answer_cannot_forge_an_event(start_gateway: StartGateway):
    forged = 'a\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'
    async with scripted(delta(content=forged), delta("stop"), DONE) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream()
    assert streamed.text() == forged
    assert len(streamed.events) == 3


# -- paths

PATHS = [
    "//api/v1/chat/completions",
    "/api//v1/chat/completions",
    "/api/v1//chat/completions",
    "/api/v1/chat/completions/",
    "/api/v1/chat/completions/.",
    "/api/v1/chat/../chat/completions",
    "/api/v1/./chat/completions",
    "/api/v1/chat%2Fcompletions",
    "/api/v1/chat%2fcompletions",
    "/%61pi/v1/chat/completions",
    "/api/v1/%2e%2e/v1/chat/completions",
    "/api/v1/chat/completions%00",
    "/api/v1/chat/completions;x=1",
    "/api/v1/chat\\completions",
    "/API/V1/CHAT/COMPLETIONS",
    "/api/v1/Chat/Completions",
    "/metrics",
    "/api/v1/../../metrics",
    "/api/v1/%2e%2e/%2e%2e/metrics",
    "/mock/requests",
    "*",
]


async def test_a_path_has_one_spelling(gateway: RunningGateway, engine: MockEngine):
    ask = gateway.request(CHAT, chat(), "connection: close")
    for path in PATHS:
        answer = await gateway.exchange(ask.replace(b"/api/v1/chat/completions", path.encode(), 1))
        assert answer.split(b" ")[1] in (b"404", b"400"), path
    assert engine.requests == []


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../../metrics",
        "%2e%2e/%2e%2e/metrics",
        "acme%2f..%2fecho-1",
        "%00",
        "%ff%fe",
        "a" * 7000,
    ],
)
async def test_a_models_name_is_looked_up_and_no_path(gateway: RunningGateway, name: str):
    answer = await gateway.exchange(
        gateway.request(f"/models/{name}", b"", "connection: close", method="GET")
    )
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b" 404 " in head
    assert json.loads(body)["error"]["code"] == "model_not_found"


async def test_a_slash_in_a_models_name_may_be_escaped(gateway: RunningGateway):
    response = await gateway.get("/models/acme%2Fecho-1")
    assert response.json()["id"] == MODEL


# -- numbers, text, depth and size

HUGE = [
    b'{"model":"acme/echo-1","messages":[{"role":"user","content":"x"}],"seed":%s}' % number
    for number in (
        b"9" * 400, b"-" + b"9" * 400, b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"-0",
        b"0x10", b"1_000", b"+1", b"1.", b".5", b"01", b"9" * 100_000, b"18446744073709551616",
    )
]  # fmt: skip


@pytest.mark.parametrize("name", [b"seed", b"temperature", b"max_tokens", b"top_p"])
async def test_a_number_out_of_all_bounds_is_refused(gateway: RunningGateway, name: bytes):
    for body in HUGE:
        response = await gateway.post(CHAT, body.replace(b'"seed"', b'"%b"' % name))
        assert response.status_code in (200, 400)
        if response.status_code == 200:
            assert body.endswith((b":-0}", b":1e-999}"))


def deep(opening: bytes, closing: bytes, depth: int = 100_000) -> bytes:
    return opening * depth + closing * depth


NESTED = {
    "arrays": b'{"model":"acme/echo-1","messages":%b}' % deep(b"[", b"]"),
    "objects": b'{"model":"acme/echo-1","messages":%b1%b}' % (b'{"a":' * 100_000, b"}" * 100_000),
    "an unknown field": b'{"x":%b}' % deep(b"[", b"]"),
    "a field of any type": b'{"model":"acme/echo-1","messages":[],"prediction":%b}'
    % deep(b"[", b"]"),
    "a schema": b'{"model":"acme/echo-1","messages":[{"role":"user","content":""}],"tools":'
    b'[{"type":"function","function":{"name":"a","parameters":{"a":%b}}}]}' % deep(b"[", b"]"),
    "a schema of moderate depth": b'{"model":"acme/echo-1","messages":[{"role":"user","content":'
    b'""}],"tools":[{"type":"function","function":{"name":"a","parameters":{"a":%b}}}]}'
    % deep(b"[", b"]", 900),
    "unclosed arrays": b"[" * 1_000_000,
    "a prompt": b'{"model":"acme/echo-1","prompt":%b}' % deep(b"[", b"]"),
}


@pytest.mark.parametrize("where", NESTED)
async def test_deep_nesting_is_refused(gateway: RunningGateway, engine: MockEngine, where: str):
    path = "/completions" if where == "a prompt" else CHAT
    response = await gateway.post(path, NESTED[where])
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert engine.requests == []


LONE = [b"\\ud800", b"\\udfff", b"\\ud800\\ud800", b"\\udc00\\ud800", b"\\uD83D"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"acme/echo-1","messages":[{"role":"user","content":"%b"}]}',
        b'{"model":"%b","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"acme/echo-1","messages":[{"role":"user","content":"x"}],"%b":1}',
        b'{"model":"acme/echo-1","messages":[{"role":"user","content":"x"}],"stop":"%b"}',
        b'{"model":"acme/echo-1","messages":[{"role":"user","content":"x"}],"tools":[{"type":'
        b'"function","function":{"name":"a","parameters":{"title":"%b"}}}]}',
        b'{"model":"acme/echo-1","messages":[{"role":"user","content":"x"}],"response_format":{'
        b'"type":"json_schema","json_schema":{"name":"a","schema":{"%b":1}}}}',
    ],
    ids=["prompt", "model", "field", "stop", "tool schema", "format schema"],
)
async def test_half_a_surrogate_pair_is_refused(
    gateway: RunningGateway, engine: MockEngine, body: bytes
):
    for text in LONE:
        response = await gateway.post(CHAT, body % text)
        assert response.status_code == 400, text
    assert engine.requests == []


@pytest.mark.parametrize(
    "text", ["\0", "\x1b[2J", "\u202e", "\ufeff", "\U0010ffff", "é" * 3, "👩‍🚀"]
)
async def test_any_whole_text_reaches_the_engine_unchanged(
    gateway: RunningGateway, engine: MockEngine, text: str
):
    assert (await gateway.chat(messages=[{"role": "user", "content": text}])).status_code == 200
    assert engine.requests[-1].json["messages"][0]["content"] == text


SCHEMA_TEXTS = [
    b"\xff",
    b'{"\xff": 1}',
    b'{"a": "\xe9"}',
    b'{"\x01": 1}',
    b'"\x01"',
    b"{'a': 1}",
    b'{"a": tru}',
    b'{"a":"\\x"}',
]


async def test_a_schema_that_is_no_json_is_refused(gateway: RunningGateway, engine: MockEngine):
    body = (
        b'{"model":"acme/echo-1","messages":[{"role":"user","content":"x"}],"tools":[{"type":'
        b'"function","function":{"name":"a","parameters":%b}}]}'
    )
    for schema in SCHEMA_TEXTS:
        assert (await gateway.post(CHAT, body % schema)).status_code == 400, schema
    assert engine.requests == []


async def test_ten_megabytes_in_any_field_are_refused_or_answered(gateway: RunningGateway):
    long = "x" * 10 * 1024 * 1024
    for name in ("model", "user", "stop", "service_tier", "reasoning_effort", "unknown", "seed"):
        response = await gateway.chat(**{name: long})
        assert response.status_code == 400
        assert len(response.content) < 4096
    assert (await gateway.chat(messages=[{"role": "user", "content": long}])).status_code == 200


async def test_many_members_are_refused_or_answered(gateway: RunningGateway):
    many: list[Any] = [
        {f"field_{n}": n for n in range(100_000)},
        chat(stop=["x"] * 1_000_000),
        chat(logit_bias={str(n): 1 for n in range(200_000)}),
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 100_000}]),
        chat(tools=[{"type": "function", "function": {"name": "x"}}] * 100_000),
        {"model": MODEL, "prompt": list(range(1_000_000)), "n": "x"},
    ]
    for fields in many:
        assert (await gateway.post(CHAT, fields)).status_code in (200, 400)


async def test_a_name_that_is_dear_to_compare_is_cut_first(gateway: RunningGateway):
    long = "temperature" * 100_000  # to compare it whole takes minutes
    assert (await gateway.chat(**{long: 1})).status_code == 400


# -- the connection


async def test_a_request_hidden_in_the_body_of_another_is_no_request(
    gateway: RunningGateway, engine: MockEngine
):
    hidden = gateway.request(CHAT, chat())
    for framing in (
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ncontent-length: 400",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity",
        "content-length: +4",
        "content-length : 4",
    ):
        head = f"POST /api/v1{CHAT} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n"
        answer = await gateway.exchange(head.encode() + b"0\r\n\r\n" + hidden)
        assert answer.startswith(b"HTTP/1.1 400")
        assert answer.count(b"\r\ndate:") == 1
    assert engine.requests == []


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://169.254.169.254/latest HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
        b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/9.9\r\nhost: a\r\n\r\n",
        b"\0" * 1000,
    ],
    ids=["tls", "http2", "absolute", "connect", "version", "zeros"],
)
async def test_another_protocol_is_refused(gateway: RunningGateway, data: bytes):
    answer = await gateway.exchange(data)
    assert answer == b"" or answer.split(b" ")[1] in (b"400", b"404", b"405", b"501")
    assert (await gateway.get("/models")).status_code == 200


async def test_the_request_id_of_an_answer_is_ours(gateway: RunningGateway):
    response = await gateway.post(CHAT, chat(), **{"x-request-id": "a" * 24})
    assert response.headers["x-request-id"] != "a" * 24
