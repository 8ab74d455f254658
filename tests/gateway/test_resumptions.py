"""What each kind of engine is asked for, so that its answers can be continued and it can go on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from prime_inference.domain.models import Deployment, Model
from prime_inference.gateway.continuation import begin, pieces, same_revision
from prime_inference.gateway.operations import Operation, chat_operation
from prime_inference.wire.openai.answers import decode_answer
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import decode_chat_request
from prime_inference.wire.openai.said import Said

from .running import MESSAGES, deployment

MODEL = Model("m", "r1", 1, 4096, 4096)
PARAMETERS = frozenset({"temperature", "logprobs", "top_logprobs", "stop", "tools", "seed"})


def chat(**fields: Any) -> Operation:
    body = json.dumps({"model": "m", "stream": True, "messages": MESSAGES, **fields})
    return chat_operation(decode_chat_request(body.encode(), SchemaBounds()))


def on(engine: Any, **fields: Any) -> Deployment:
    known = deployment(0, "http://127.0.0.1:1/v1", parameters=PARAMETERS, **fields)
    return replace(known, engine=engine)


def said(text: str = "Once") -> Said:
    record = Said(None)
    event = {"choices": [{"delta": {"content": text}}]}
    record.take(decode_answer(json.dumps(event).encode()), None)
    return record


@pytest.mark.parametrize(
    ("engine", "asks"),
    [
        ("vllm", {"return_token_ids": True}),
        ("llama.cpp", {"logprobs": True, "top_logprobs": 1, "post_sampling_probs": True}),
        ("dynamo", {}),
        ("openai", {}),
    ],
)
def test_a_stream_names_its_tokens_where_the_engine_can(engine: str, asks: dict[str, Any]):
    operation = chat(temperature=0)
    plain = json.loads(operation.body(on(engine)))
    body, _ = begin(operation, on(engine))
    assert json.loads(body) == plain | asks


def test_the_clients_logprobs_are_not_replaced_by_ours():
    operation = chat(logprobs=True, top_logprobs=3)
    body, _ = begin(operation, on("llama.cpp"))
    assert json.loads(body)["top_logprobs"] == 3
    assert "post_sampling_probs" not in json.loads(body)


@pytest.mark.parametrize("engine", ["vllm", "dynamo"])
def test_a_prefill_leaves_the_last_message_open(engine: str):
    (piece,) = pieces(chat(max_tokens=9), MODEL, on(engine), said(), [])
    body = json.loads(piece.body)
    assert piece.path == "/chat/completions"
    assert body["messages"] == [*MESSAGES, {"role": "assistant", "content": "Once"}]
    assert body["continue_final_message"] is True
    assert body["max_tokens"] == 8


@pytest.mark.parametrize(("text", "open_text"), [("a b \n\n", "a b"), (" a", " a")])
def test_a_prefill_ends_where_a_template_that_trims_would_end_it(text: str, open_text: str):
    (piece,) = pieces(chat(), MODEL, on("dynamo"), said(text), [])
    assert json.loads(piece.body)["messages"][-1]["content"] == open_text
    assert open_text + piece.again == text


def test_an_answer_of_nothing_but_space_is_begun_again():
    """An empty message cannot be left open: Dynamo and vLLM refuse it."""
    operation = chat(max_tokens=9)
    (piece,) = pieces(operation, MODEL, on("dynamo"), said("\n"), [])
    assert json.loads(piece.body)["messages"] == MESSAGES
    assert "continue_final_message" not in json.loads(piece.body)
    assert piece.again == "\n"


def test_a_conversation_that_ends_with_the_assistant_is_not_prefilled_twice():
    messages = [*MESSAGES, {"role": "assistant", "content": "Once"}]
    assert list(pieces(chat(messages=messages), MODEL, on("vllm"), said(), [])) == []


def test_an_unknown_engine_goes_on_with_no_chat():
    assert list(pieces(chat(), MODEL, on("openai"), said(), [])) == []


def test_only_a_known_revision_is_the_same():
    assert same_revision("r1", "r1")
    assert not same_revision("r1", "r2")
    assert not same_revision("unknown", "unknown")
    assert not same_revision("", "")
