"""Every parameter of OpenAI's API reaches the engine or is refused by its name.

The parameters are read from the types of the `openai` package: one that a new release of it
brings makes these tests fail until somebody decides what becomes of it.
"""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import (
    chat_completion_content_part_param,
    chat_completion_message_param,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)

from prime_inference import compose
from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.operations import NEUTRAL

from .conftest import StartGateway
from .running import MESSAGES, MODEL, OTHER_MODEL, RunningGateway

ENGINE = "reaches the engine as it is"
OURS = "is the gateway's own business"
REFUSED = "is refused by name"

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}

CHAT: dict[str, tuple[str, Any]] = {
    "audio": (REFUSED, {"format": "mp3", "voice": "alloy"}),
    "frequency_penalty": (ENGINE, 0.5),
    "function_call": (REFUSED, "auto"),
    "functions": (REFUSED, [{"name": "f", "parameters": SCHEMA}]),
    "logit_bias": (ENGINE, {"17": -100}),
    "logprobs": (ENGINE, True),
    "max_completion_tokens": (OURS, 9),
    "max_tokens": (ENGINE, 9),
    "messages": (ENGINE, MESSAGES),
    "metadata": (REFUSED, {"run": "7"}),
    "modalities": (REFUSED, ["text", "audio"]),
    "model": (OURS, MODEL),
    "moderation": (REFUSED, {"model": "omni"}),
    "n": (ENGINE, 2),
    "parallel_tool_calls": (ENGINE, False),
    "prediction": (REFUSED, {"type": "content", "content": "x"}),
    "presence_penalty": (ENGINE, -0.5),
    "prompt_cache_key": (OURS, "session-7"),
    "prompt_cache_options": (REFUSED, {"mode": "explicit"}),
    "prompt_cache_retention": (REFUSED, "24h"),
    "reasoning_effort": (ENGINE, "high"),
    "response_format": (ENGINE, FORMAT),
    "safety_identifier": (OURS, "user-7"),
    "seed": (ENGINE, 7),
    "service_tier": (REFUSED, "priority"),
    "stop": (ENGINE, ["END"]),
    "store": (REFUSED, True),
    "stream": (ENGINE, True),
    "stream_options": (OURS, {"include_usage": True}),
    "temperature": (ENGINE, 0.2),
    "tool_choice": (ENGINE, "required"),
    "tools": (ENGINE, [TOOL]),
    "top_logprobs": (ENGINE, 3),
    "top_p": (ENGINE, 0.9),
    "user": (OURS, "user-7"),
    "verbosity": (REFUSED, "low"),
    "web_search_options": (REFUSED, {"search_context_size": "low"}),
}

NEEDS: dict[str, dict[str, Any]] = {
    "parallel_tool_calls": {"tools": [TOOL]},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [TOOL]},
    "top_logprobs": {"logprobs": True},
}
"""What a parameter makes no sense without."""

COMPLETION: dict[str, tuple[str, Any]] = {
    **{name: CHAT[name] for name in (
        "frequency_penalty", "logit_bias", "max_tokens", "model", "n", "presence_penalty", "seed",
        "stop", "stream", "stream_options", "temperature", "top_p", "user",
    )},
    "best_of": (REFUSED, 2),
    "echo": (REFUSED, True),
    "logprobs": (ENGINE, 0),
    "prompt": (ENGINE, "Once"),
    "suffix": (REFUSED, "the end"),
}  # fmt: skip

EMBEDDING: dict[str, tuple[str, Any]] = {
    "dimensions": (ENGINE, 4),
    "encoding_format": (ENGINE, "base64"),
    "input": (ENGINE, ["a", "b"]),
    "model": (OURS, MODEL),
    "user": (OURS, "user-7"),
}

ROUTES: dict[str, tuple[dict[str, tuple[str, Any]], dict[str, Any]]] = {
    "/chat/completions": (CHAT, {"messages": MESSAGES}),
    "/completions": (COMPLETION, {"prompt": "Once"}),
    "/embeddings": (EMBEDDING, {"input": "Once"}),
}
CASES = [(path, name) for path, (table, _) in ROUTES.items() for name in table]


def parameters_of_openai(module: Any) -> set[str]:
    """Every parameter that the SDK can send."""
    names: set[str] = set()
    for variant in vars(module).values():
        if isinstance(variant, type) and variant.__name__.startswith(
            ("CompletionCreateParams", "EmbeddingCreateParams")
        ):
            names |= set(get_type_hints(variant))
    return names


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (chat_create_params, CHAT),
        (completion_create_params, COMPLETION),
        (embedding_create_params, EMBEDDING),
    ],
    ids=["chat", "completions", "embeddings"],
)
def test_the_table_has_every_parameter_of_the_sdk(module: Any, table: dict[str, Any]):
    assert parameters_of_openai(module) == set(table)


@pytest.mark.parametrize(("path", "name"), CASES)
async def test_a_parameter_reaches_the_engine_or_is_refused_by_name(
    gateway: RunningGateway, engine: MockEngine, path: str, name: str
):
    table, basis = ROUTES[path]
    fate, value = table[name]
    needs = NEEDS.get(name, {}) if path != "/embeddings" else {}
    response = await gateway.post(path, {"model": MODEL, **basis, **needs, name: value})
    if fate == REFUSED:
        error = response.json()["error"]
        assert response.status_code == 400
        assert error["param"] == name
        assert f"'{name}'" in error["message"]
        assert engine.requests == []
        return
    assert response.status_code == 200
    sent = engine.requests[-1].json
    if fate == ENGINE:
        assert sent[name] == value
    else:
        assert sent.get(name) != value


@pytest.mark.parametrize("kind", compose.ENGINE_PARAMETERS)
async def test_every_kind_of_engine_gets_what_it_honours_and_nothing_else(
    start_gateway: StartGateway, engine: MockEngine, kind: str
):
    gateway = await start_gateway(engine, kinds=[kind])
    known = compose.ENGINE_PARAMETERS[kind]  # type: ignore[index]
    for name, (fate, value) in CHAT.items():
        if fate != ENGINE or name in ("messages", "max_tokens", "stream"):
            continue
        if not set(NEEDS.get(name, {})) <= known:
            continue
        response = await gateway.chat(**NEEDS.get(name, {}), **{name: value})
        if name in known:
            assert response.status_code == 200, (name, response.text)
            assert engine.requests[-1].json[name] == value
        else:
            assert response.status_code == 400, name
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", name)


async def test_the_answers_limit_has_two_names_and_reaches_the_engine_under_one(
    gateway: RunningGateway, engine: MockEngine
):
    for name in ("max_tokens", "max_completion_tokens"):
        response = await gateway.chat(**{name: 7})
        assert response.json()["usage"]["completion_tokens"] == 7
        assert engine.requests[-1].json["max_tokens"] == 7
    both = await gateway.chat(max_tokens=7, max_completion_tokens=8)
    assert both.status_code == 400
    assert (await gateway.chat(max_tokens=7, max_completion_tokens=7)).status_code == 200


async def test_null_is_the_same_as_nothing(gateway: RunningGateway, engine: MockEngine):
    assert (await gateway.chat()).status_code == 200
    for name in set(CHAT) - {"model", "messages"}:
        assert (await gateway.chat(**{name: None})).status_code == 200, name
        assert engine.requests[-1].json == engine.requests[0].json, name


async def test_a_value_that_changes_nothing_is_accepted_and_not_sent(
    gateway: RunningGateway, engine: MockEngine
):
    for name in set(CHAT) & set(NEUTRAL):
        for value in NEUTRAL[name]:
            response = await gateway.chat(**NEEDS.get(name, {}), **{name: value})
            assert response.status_code == 200, name
            assert name not in engine.requests[-1].json


async def test_sampling_of_vllm_is_known_too(gateway: RunningGateway, engine: MockEngine):
    extras = {"top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1}
    assert (await gateway.chat(**extras)).status_code == 200
    assert extras.items() <= engine.requests[-1].json.items()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_engine_is_always_asked_for_usage(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    await gateway.chat(stream=stream)
    sent = engine.requests[-1].json
    assert ("stream_options" in sent) is stream
    if stream:
        assert sent["stream_options"]["include_usage"] is True


async def test_a_text_format_asks_for_nothing(gateway: RunningGateway, engine: MockEngine):
    assert (await gateway.chat(response_format={"type": "text"})).status_code == 200
    assert "response_format" not in engine.requests[-1].json


IMAGE = "data:image/png;base64,iVBORw0KGgo="
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
TURNS: dict[str, list[dict[str, Any]]] = {
    "developer": [{"role": "developer", "content": "Be brief."}, *MESSAGES],
    "system": [{"role": "system", "content": "Be brief.", "name": "boss"}, *MESSAGES],
    "user": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    "assistant": [*MESSAGES, {"role": "assistant", "content": "Rivers"}, *MESSAGES],
    "tool": [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
}


def test_the_table_has_every_role_of_the_sdk():
    roles = {
        get_args(get_type_hints(message)["role"])[0]
        for message in get_args(chat_completion_message_param.ChatCompletionMessageParam)
    }
    assert roles == {*TURNS, "function"}  # "function" went with `functions`


@pytest.mark.parametrize("role", TURNS)
async def test_messages_of_every_role_reach_the_engine_as_they_are(
    gateway: RunningGateway, engine: MockEngine, role: str
):
    assert (await gateway.chat(messages=TURNS[role])).status_code == 200
    sent = engine.requests[-1].json["messages"]
    for message, original in zip(sent, TURNS[role], strict=True):
        assert {name: value for name, value in message.items() if value is not None} == {
            name: value for name, value in original.items() if value is not None
        }


async def test_an_answer_of_an_sdk_can_be_sent_back_as_a_turn(
    gateway: RunningGateway, engine: MockEngine
):
    answer = (await gateway.chat(tools=[TOOL], tool_choice="required")).json()["choices"][0]
    turn = {**answer["message"], "annotations": [], "audio": None, "function_call": None}
    result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "sunny"}
    again = await gateway.chat(messages=[*MESSAGES, turn, result], tools=[TOOL])
    assert again.status_code == 200
    sent = engine.requests[-1].json["messages"][1]
    assert sent["tool_calls"] == turn["tool_calls"]
    assert not {"annotations", "audio", "function_call"} & set(sent)


PARTS: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "text": "What is this?"},
    "image_url": {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
    "input_audio": {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    "file": {"type": "file", "file": {"file_id": "file-7"}},
}


def test_the_table_has_every_part_of_the_sdk():
    parts = get_args(chat_completion_content_part_param.ChatCompletionContentPartParam)
    assert {get_args(get_type_hints(part)["type"])[0] for part in parts} == set(PARTS)


@pytest.mark.parametrize("kind", PARTS)
@pytest.mark.parametrize("model", [MODEL, OTHER_MODEL])
async def test_parts_that_a_model_cannot_take_are_refused_by_their_place(
    gateway: RunningGateway, engine: MockEngine, kind: str, model: str
):
    messages = [{"role": "user", "content": [PARTS["text"], PARTS[kind]]}]
    response = await gateway.chat(model=model, messages=messages)
    if kind == "text" or (kind == "image_url" and model == OTHER_MODEL):
        assert response.status_code == 200
        assert engine.requests[-1].json["messages"] == messages
    else:
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "unsupported_parameter"
        assert error["param"] == "messages[0].content[1]"


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/cat.png",
        "http://127.0.0.1:8001/metrics",
        "file:///etc/passwd",
        "data:text/html,<script>",
        "data:text/html;base64,iVBORw0KGgo=",
        "data:image/svg+xml;base64,PHN2Zy8+",
        "data:image/png,raw",
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,iVBORw0KGg",
        "data:image/png;base64,http://127.0.0.1:8998/",
        "data:image/../../png;base64,iVBORw0KGgo=",
    ],
)
async def test_an_image_is_data_of_a_known_type_and_no_address(
    gateway: RunningGateway, engine: MockEngine, url: str
):
    part = {"type": "image_url", "image_url": {"url": url}}
    response = await gateway.chat(model=OTHER_MODEL, messages=[{"role": "user", "content": [part]}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[0].image_url.url"
    assert engine.requests == []
