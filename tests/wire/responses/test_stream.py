"""Any legal chat answer is a legal response, in every ending, streamed or whole."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.wire.responses.items import MessageItem, decode_items
from prime_inference.wire.responses.request import decode_responses_request
from prime_inference.wire.responses.response import ResponseHead
from prime_inference.wire.responses.stream import ResponseStream
from prime_inference.wire.responses.to_chat import Conversation, to_chat
from tests.wire.chat_streams import Streamed, answers, patient, streamed, whole
from tests.wire.responses.judge import judge


def translation(**fields: Any) -> ResponseStream:
    body = json.dumps({"model": "a/b", "input": "hello", **fields}).encode()
    head = ResponseHead(decode_responses_request(body), answer_id="7", created=1, expires_at=9)
    return ResponseStream(head)


def said(response: dict[str, Any], kind: str) -> str:
    """Everything that the parts of one kind say."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(p.get("text", p.get("refusal")) for p in parts if p["type"] == kind)


def calls(response: dict[str, Any]) -> list[tuple[str, str, str]]:
    items = [item for item in response["output"] if item["type"] == "function_call"]
    return [(item["call_id"], item["name"], item["arguments"]) for item in items]


def assert_all_there(response: dict[str, Any], answer: Streamed) -> None:
    assert said(response, "reasoning_text") == answer.said("reasoning_content")
    assert said(response, "output_text") == answer.said("content")
    assert said(response, "refusal") == answer.said("refusal")
    assert calls(response) == answer.calls()


@patient
@given(answers(), st.integers(1, 4))
def test_any_answer_is_a_legal_sequence_with_everything_in_it(answer: Streamed, step: int):
    final = judge(streamed(answer, translation(), step=step).events)
    assert_all_there(final, answer)
    incomplete = {"length": "max_output_tokens", "content_filter": "content_filter"}
    if reason := incomplete.get(answer.finish):
        assert final["incomplete_details"] == {"reason": reason}
    else:
        assert final["status"] == "completed"
    if answer.usage is None:
        assert final["usage"] is None
    else:
        assert final["usage"]["total_tokens"] == answer.usage.total_tokens
        assert final["usage"]["input_tokens_details"]["cached_tokens"] == answer.usage.cached_tokens


@patient
@given(answers(), st.data())
def test_an_error_anywhere_ends_a_legal_sequence_as_failed(answer: Streamed, data: st.DataObject):
    after = data.draw(st.integers(0, len(answer.deltas)))
    final = judge(streamed(answer, translation(), error_after=after).events)
    assert final["status"] == "failed"
    assert final["error"] == {"code": "server_error", "message": "It broke."}


@patient
@given(answers(in_order=True))
def test_a_whole_answer_is_what_its_stream_ends_with(answer: Streamed):
    final = judge(streamed(answer, translation()).events)
    assert whole(answer, translation()) == final


@patient
@given(answers())
def test_a_whole_answer_has_everything_whatever_order_it_was_streamed_in(answer: Streamed):
    response = whole(answer, translation())
    assert_all_there(response, answer)


@patient
@given(answers(in_order=True))
def test_what_is_handed_back_is_the_message_that_the_model_gave(answer: Streamed):
    """Output items, played back as input, are the chat message that they were made of."""
    response = whole(answer, translation())
    items = decode_items(
        msgspec.json.decode(json.dumps(response["output"]), type=list[msgspec.Raw])
    )
    request = decode_responses_request(b'{"model":"a/b","input":"more"}')
    more = MessageItem(role="user", content="more")
    *turns, _ = to_chat(request, Conversation(items, [more]), []).messages
    assert len(turns) == bool(items)
    sent = json.loads(msgspec.json.encode(turns[0])) if turns else {}
    assert (sent.get("content") or "") == answer.said("content")
    assert sent.get("reasoning_content", "") == answer.said("reasoning_content")
    assert sent.get("refusal", "") == answer.said("refusal")
    assert [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in sent.get("tool_calls", ())
    ] == answer.calls()


@pytest.mark.parametrize("sealed", [False, True])
def test_encrypted_content_is_there_when_asked_for(sealed: bool):
    answer = Streamed([{"reasoning_content": "hm <é>"}, {"content": "yes"}], "stop", None)
    include = ["reasoning.encrypted_content"] if sealed else []
    final = judge(streamed(answer, translation(include=include)).events)
    assert ("encrypted_content" in final["output"][0]) == sealed


def test_a_call_that_waits_for_another_loses_nothing():
    def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
        function = {"arguments": arguments, **({"name": f"f{index}"} if more else {})}
        return {"tool_calls": [{"index": index, "function": function, **more}]}

    answer = Streamed(
        [call(0, '{"a":', id="x"), call(1, "{", id="y"), {"content": "so"}, call(0, "1}"),
         call(1, "}")],
        "tool_calls",
        None,
    )  # fmt: skip
    final = judge(streamed(answer, translation()).events)
    assert calls(final) == [("x", "f0", '{"a":1}'), ("y", "f1", "{}")]
    assert said(final, "output_text") == "so"
