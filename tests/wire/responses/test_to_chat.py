"""Items and parameters of a Responses request as a chat request."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.wire.responses.items import decode_items
from prime_inference.wire.responses.reasoning import sealed
from prime_inference.wire.responses.request import decode_responses_request, decode_tools
from prime_inference.wire.responses.to_chat import Conversation, to_chat


def chat(items: list[Any], **fields: Any) -> dict[str, Any]:
    """The chat request, as it is written."""
    body = json.dumps({"model": "a/b", "input": items, **fields}).encode()
    request = decode_responses_request(body)
    assert not isinstance(request.input, str)
    conversation = Conversation([], decode_items(request.input))
    made = to_chat(request, conversation, decode_tools(request.tools or []))
    written: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return written


def message(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def call(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}


def output(number: int, value: Any = "ok") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": value}


def reasoning(text: str) -> dict[str, Any]:
    return {
        "type": "reasoning", "id": "r", "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }  # fmt: skip


def shape(messages: list[dict[str, Any]]) -> list[str]:
    """Role and parts of each message."""
    return [
        " ".join(
            [each["role"]]
            + [name for name in ("reasoning_content", "content") if each.get(name)]
            + [call["id"] for call in each.get("tool_calls", ())]
        )
        for each in messages
    ]


def test_what_the_model_did_in_a_row_is_one_message():
    items = [
        message("user", "go"), reasoning("hm"), message("assistant", "I look."), call(1), call(2),
        output(1), output(2), reasoning("so"), call(3), output(3), message("assistant", "done"),
    ]  # fmt: skip
    assert shape(chat(items)["messages"]) == [
        "user content",
        "assistant reasoning_content content c1 c2",
        "tool content",
        "tool content",
        "assistant reasoning_content c3",
        "tool content",
        "assistant content",
    ]


def test_two_messages_of_the_models_in_a_row_stay_two():
    items = [message("assistant", "one"), message("assistant", "two"), message("user", "?")]
    assert [m["content"] for m in chat(items)["messages"]] == ["one", "two", "?"]


def test_a_text_after_calls_stays_in_their_turn():
    items = [message("user", "go"), call(1), message("assistant", "said"), output(1)]
    assert shape(chat(items)["messages"]) == [
        "user content", "assistant content c1", "tool content",
    ]  # fmt: skip


def test_sealed_reasoning_is_the_reasoning_again():
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed("é <b> &lt;")}
    messages = chat([item, call(1), output(1)])["messages"]
    assert messages[0]["reasoning_content"] == "é <b> &lt;"


@pytest.mark.parametrize("value", ["gAAAA", "pi1.%%%", "pi1._w==", ""])
def test_reasoning_sealed_by_others_is_refused_or_empty(value: str):
    item = {"type": "reasoning", "summary": [], "encrypted_content": value}
    if not value:
        assert shape(chat([item, message("user", "x")])["messages"]) == ["user content"]
        return
    with pytest.raises(InvalidRequest) as caught:
        chat([item, message("user", "x")])
    assert caught.value.param == "input[0].encrypted_content"


def test_parts_of_messages_and_outputs_become_parts():
    image = "data:image/png;base64,AAAA"
    items = [
        message("user", [
            {"type": "input_text", "text": "see"},
            {"type": "input_image", "image_url": image, "detail": "low"},
        ]),
        call(1),
        output(1, [{"type": "input_text", "text": "a &lt; b"}]),
    ]  # fmt: skip
    user, _, tool = chat(items)["messages"]
    assert user["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": image, "detail": "low"}},
    ]
    assert tool["content"] == [{"type": "text", "text": "a &lt; b"}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (message("user", [{"type": "input_file", "file_id": "f"}]), "input[0].content[0]"),
        (message("user", [{"type": "input_image", "file_id": "f"}]), "input[0].content[0]"),
        (output(1, [{"type": "input_image", "image_url": "x"}]), "input[0].output[0]"),
        (message("system", [{"type": "refusal", "refusal": "x"}]), "input[0].content[0]"),
        (message("assistant", [{"type": "input_file"}]), "input[0].content[0]"),
        ({"type": "computer_call"}, "input[0].type"),
        ({**call(1), "extra": 1}, "input[0].extra"),
        ({"type": "function_call", "call_id": "c"}, "input[0].name"),
        (7, "input[0]"),
    ],
)
def test_what_cannot_be_said_is_refused_by_its_place(item: Any, param: str):
    with pytest.raises(InvalidRequest) as caught:
        chat([item])
    assert caught.value.param == param
    assert param in caught.value.message


def test_an_input_that_says_nothing_is_refused():
    with pytest.raises(InvalidRequest) as caught:
        chat([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "I thought."}]}])
    assert caught.value.param == "input"


TOOLS = [{"type": "function", "name": name} for name in ("f", "g")]


def test_a_function_is_chosen_by_its_name():
    choice = {"type": "function", "name": "f"}
    made = chat([message("user", "x")], tools=TOOLS, tool_choice=choice)
    assert made["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert len(made["tools"]) == 2


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]},
    ],
)
def test_a_choice_of_nothing_is_refused(choice: dict[str, Any]):
    with pytest.raises(InvalidRequest) as caught:
        chat([message("user", "x")], tools=TOOLS, tool_choice=choice)
    assert str(caught.value.param).startswith("tool_choice")


@pytest.mark.parametrize("kind", ["web_search", "custom", "mcp", "local_shell"])
def test_tools_that_are_no_functions_are_refused_by_their_place(kind: str):
    with pytest.raises(UnsupportedParameter) as caught:
        chat([message("user", "x")], tools=[*TOOLS, {"type": kind, "name": "x"}])
    assert caught.value.param == "tools[2].type"


@pytest.mark.parametrize("missing", ["name", "schema"])
def test_a_format_that_lacks_something_names_it(missing: str):
    wanted = {"type": "json_schema", "name": "x", "schema": {}}
    del wanted[missing]
    with pytest.raises(InvalidRequest) as caught:
        chat([message("user", "x")], text={"format": wanted})
    assert caught.value.param == f"text.format.{missing}"
