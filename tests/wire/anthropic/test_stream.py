"""Any legal chat answer is a legal message, in every ending, streamed or whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.anthropic.stream import SIGNATURE, MessageStream
from tests.wire.anthropic.judge import judge
from tests.wire.chat_streams import Streamed, answers, patient, streamed, whole


def translation() -> MessageStream:
    return MessageStream(request_id="7", model="a/b")


def said(message: dict[str, Any], kind: str, key: str) -> str:
    return "".join(block[key] for block in message["content"] if block["type"] == kind)


def calls(message: dict[str, Any]) -> list[tuple[str, str, Any]]:
    blocks = [block for block in message["content"] if block["type"] == "tool_use"]
    return [(block["id"], block["name"], block["input"]) for block in blocks]


def parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return arguments


def is_broken(answer: Streamed) -> bool:
    """Whether a call but the last thing said was cut: engines do not do that."""
    return answer.finish == "length" and any(
        isinstance(parsed(arguments), str) for _, _, arguments in answer.calls()
    )


@patient
@given(answers(), st.integers(1, 4))
def test_any_answer_is_a_legal_sequence_with_everything_in_it(answer: Streamed, step: int):
    if is_broken(answer):
        return
    message = judge(streamed(answer, translation(), step=step).events)
    assert message is not None
    assert said(message, "thinking", "thinking") == answer.said("reasoning_content")
    texts = sorted(answer.said("content") + answer.said("refusal"))
    assert sorted(said(message, "text", "text")) == texts
    assert calls(message) == [(i, name, parsed(text)) for i, name, text in answer.calls()]
    stops = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use",
             "content_filter": "refusal"}  # fmt: skip
    refused = answer.finish == "stop" and answer.said("refusal")
    called = answer.finish == "stop" and answer.calls()  # as a named call ends
    expected = "refusal" if refused else "tool_use" if called else stops[answer.finish]
    assert message["stop_reason"] == expected
    usage = message["usage"]
    if answer.usage is not None:
        assert usage["output_tokens"] == answer.usage.completion_tokens
        total = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert total == answer.usage.prompt_tokens


@patient
@given(answers(), st.data())
def test_an_error_anywhere_ends_a_legal_sequence(answer: Streamed, data: st.DataObject):
    after = data.draw(st.integers(0, len(answer.deltas)))
    recorded = streamed(answer, translation(), error_after=after)
    assert judge(recorded.events) is None
    assert recorded.events[-1][1]["error"] == {"type": "api_error", "message": "It broke."}


@patient
@given(answers(in_order=True))
def test_a_whole_answer_is_what_its_stream_adds_up_to(answer: Streamed):
    if is_broken(answer):
        return
    message = judge(streamed(answer, translation()).events)
    assert whole(answer, translation()) == message


def test_thinking_is_signed_so_that_clients_keep_it():
    answer = Streamed([{"reasoning_content": "hm"}, {"content": "yes"}], "stop", None)
    message = whole(answer, translation())
    assert message["content"][0] == {"type": "thinking", "thinking": "hm", "signature": SIGNATURE}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "c", "function": function}]}


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"', "null", "nonsense"])
def test_arguments_that_are_no_object_are_an_error_either_way(arguments: str):
    answer = Streamed([call(arguments)], "tool_calls", None)
    with pytest.raises(UpstreamMalformed):
        whole(answer, translation())
    with pytest.raises(UpstreamMalformed):
        streamed(answer, translation())


def test_a_call_that_the_limit_cut_streams_as_far_as_it_came_and_is_empty_as_a_whole():
    answer = Streamed([call('{"a": "b')], "length", None)
    message = judge(streamed(answer, translation()).events)
    assert message is not None
    assert message["stop_reason"] == "max_tokens"
    assert calls(message) == [("c", "f", '{"a": "b')]
    assert calls(whole(answer, translation())) == [("c", "f", {})]


def test_input_keeps_numbers_and_the_order_of_keys_as_the_model_wrote_them():
    text = '{"z": 12345678901234567890, "a": 1.10, "t": "&lt;b>\\u00e9"}'
    answer = Streamed([call(text)], "tool_calls", None)
    message = whole(answer, translation())
    assert json.dumps(message["content"][0]["input"]) == json.dumps(json.loads(text))


def test_a_call_without_an_id_gets_one():
    answer = Streamed(
        [{"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}],
        "tool_calls",
        None,
    )
    message = judge(streamed(answer, translation()).events)
    assert message is not None
    assert message["content"][0]["id"] == "call_x_0"
