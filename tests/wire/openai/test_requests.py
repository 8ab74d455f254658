"""Requests: what is decoded is what was meant, and errors say where they are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.errors import InvalidRequest, UnknownParameter
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import ChatRequest, decode_chat_request
from prime_inference.wire.openai.completion_request import (
    decode_completion_request,
    decode_embedding_request,
)

BASIS: dict[str, Any] = {"model": "a/b", "messages": [{"role": "user", "content": "x"}]}


def decoded(**fields: Any) -> ChatRequest:
    return decode_chat_request(json.dumps({**BASIS, **fields}).encode(), SchemaBounds())


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decoded(**fields)
    return caught.value


def sent(request: ChatRequest, field: str) -> Any:
    """A field as the engine will read it."""
    return json.loads(msgspec.json.encode(getattr(request, field)))


texts = st.text(max_size=8)
parts = st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), max_size=3)
calls = st.lists(
    st.builds(
        lambda identity, name, text: {
            "id": identity, "type": "function", "function": {"name": name, "arguments": text},
        },
        texts, texts, texts,
    ),
    min_size=1,
    max_size=3,
)  # fmt: skip
turns = st.one_of(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["system", "developer", "user", "assistant"]),
        texts | parts,
    ),
    st.builds(lambda calls: {"role": "assistant", "tool_calls": calls}, calls),
    st.builds(
        lambda identity, content: {"role": "tool", "tool_call_id": identity, "content": content},
        texts,
        texts,
    ),
)


@given(messages=st.lists(turns, min_size=1, max_size=6))
def test_a_conversation_reaches_the_engine_as_it_is(messages: list[dict[str, Any]]):
    assert sent(decoded(messages=messages), "messages") == messages


def test_what_sdks_play_back_with_a_turn_is_left_out():
    turn = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [{"type": "url_citation"}],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
    }
    (message,) = sent(decoded(messages=[turn]), "messages")
    assert message == {"role": "assistant", "content": "x", "refusal": None}


def test_the_index_of_a_call_that_was_streamed_is_left_out():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "tool_calls": [{**call, "index": 0}]}
    assert sent(decoded(messages=[turn]), "messages")[0]["tool_calls"] == [call]


@pytest.mark.parametrize(
    "choice",
    ["none", "auto", "required", {"type": "function", "function": {"name": "f"}}],
    ids=str,
)
def test_a_tool_choice_reaches_the_engine_as_it_is(choice: Any):
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert sent(decoded(tools=tools, tool_choice=choice), "tool_choice") == choice


def test_the_type_of_a_tool_may_be_left_out_and_is_written():
    request = decoded(tools=[{"function": {"name": "f"}}])
    assert sent(request, "tools") == [{"type": "function", "function": {"name": "f"}}]


def test_a_schema_keeps_its_spelling():
    """The order of properties is the order in which a grammar has them generated."""
    schema = '{"type":"object","properties":{"z":{"const":1.0},"a":{"const":1e2}}}'
    body = json.dumps({**BASIS, "tools": [{"function": {"name": "f", "parameters": "SCHEMA"}}]})
    request = decode_chat_request(body.replace('"SCHEMA"', schema).encode(), SchemaBounds())
    assert request.tools is not None
    assert bytes(request.tools[0].function.parameters) == schema.encode()  # type: ignore[arg-type]


# -- where an error is

MISSING = [
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"tools": [{"function": {}}]}, "tools[0].function.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}},
     "response_format.json_schema.name"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), MISSING)
def test_a_missing_field_is_told_by_its_path(fields: dict[str, Any], param: str):
    error = refused(**fields)
    assert error.param == param
    assert error.message == f"Missing required parameter: '{param}'."


@given(name=st.text(st.characters(exclude_characters="`", codec="utf-8"), max_size=50))
def test_an_unknown_field_is_told_by_its_name(name: str):
    if name in ChatRequest.__struct_encode_fields__:
        return
    error = refused(**{name: 1})
    assert isinstance(error, UnknownParameter)
    assert error.param == name
    assert f"'{name}'" in error.message


def test_an_unknown_field_inside_is_told_by_its_path():
    error = refused(messages=[{"role": "user", "content": "x", "a.b": 1}])
    assert isinstance(error, UnknownParameter)
    assert error.param == "messages[0].a.b"


@given(body=st.binary(max_size=80))
def test_bytes_are_refused_and_raise_nothing_else(body: bytes):
    schemas = SchemaBounds()
    for decode in (
        lambda data: decode_chat_request(data, schemas),
        decode_completion_request,
        decode_embedding_request,
    ):
        with pytest.raises(InvalidRequest):
            decode(body)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (rb'{"model": "\ud83d"}', r"\ud83d at byte 11 is half"),
        (rb'{"model": "\ude00 x"}', r"\ude00 at byte 11 is half"),
        (rb'{"model": "\\\\ud83d \ud83d\u0041"}', r"\ud83d at byte 21 is half"),
        (rb'{"model": "\ud83d\ude00", "x', "truncated"),
        (b"\x1f\x8b\x08\x00", "compressed"),
        (b"\x28\xb5\x2f\xfd\x24", "compressed"),
    ],
)
def test_what_a_decoder_would_misname_is_told_as_it_is(body: bytes, told: str):
    with pytest.raises(InvalidRequest) as refusal:
        decode_completion_request(body)
    assert told in refusal.value.message


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)


@given(value=numbers)
def test_a_number_is_within_its_bounds_or_refused_by_name(value: float):
    limits: dict[str, tuple[float, float, type]] = {
        "temperature": (0, 2, float),
        "top_p": (0, 1, float),
        "presence_penalty": (-2, 2, float),
        "n": (1, 8, int),
        "max_tokens": (1, 2**31 - 1, int),
        "seed": (-(2**63), 2**63 - 1, int),
    }
    for name, (low, high, kind) in limits.items():
        fits = low <= value <= high and (kind is float or isinstance(value, int))
        if fits:
            assert getattr(decoded(**{name: value}), name) == value
        elif not (kind is int and float(value).is_integer()):
            assert refused(**{name: value}).param == name
