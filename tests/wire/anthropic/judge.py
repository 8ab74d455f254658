"""The grammar of a message's events, as a judge that knows nothing of how they are made.

message := message_start block* message_delta message_stop
         | [message_start block* [block cut anywhere]] error
block   := content_block_start content_block_delta* content_block_stop
"""

from __future__ import annotations

import json
from typing import Any

from tests.wire.responses.judge import Event

PIECES = {
    ("text", "text_delta"): "text",
    ("thinking", "thinking_delta"): "thinking",
    ("thinking", "signature_delta"): "signature",
    ("tool_use", "input_json_delta"): "partial_json",
}


def judge(events: list[Event]) -> dict[str, Any] | None:
    """The message of a legal sequence, None for one that failed; else AssertionError."""
    left = list(events)
    for name, data in left:
        assert data["type"] == name
    if left[0][0] == "error":
        _error(left)
        return None
    name, start = left.pop(0)
    assert name == "message_start"
    message: dict[str, Any] = start["message"]
    assert message["content"] == []
    assert message["stop_reason"] is None
    while left[0][0] == "content_block_start":
        block = _block(left, len(message["content"]))
        if block is None:
            return None
        message["content"].append(block)
    if left[0][0] == "error":
        _error(left)
        return None
    name, delta = left.pop(0)
    assert name == "message_delta"
    assert delta["delta"]["stop_reason"] is not None
    message |= delta["delta"]
    message["usage"] = {**message["usage"], **delta["usage"]}
    assert [name for name, _ in left] == ["message_stop"]
    return message


def _error(left: list[Event]) -> None:
    ((_, data),) = left  # nothing after it
    assert data["error"]["type"]
    assert data["error"]["message"]


def _block(left: list[Event], index: int) -> dict[str, Any] | None:
    """One block, put together; None if an error cut it."""
    _, start = left.pop(0)
    assert start["index"] == index
    block: dict[str, Any] = start["content_block"]
    text = ""
    while left[0][0] == "content_block_delta":
        _, data = left.pop(0)
        assert data["index"] == index
        delta = data["delta"]
        key = PIECES[block["type"], delta["type"]]
        if key == "partial_json":
            text += delta[key]
        else:
            block[key] += delta[key]
    if left[0][0] == "error":
        _error(left)
        return None
    name, stop = left.pop(0)
    assert (name, stop["index"]) == ("content_block_stop", index)
    if block["type"] == "tool_use":
        assert block["input"] == {}
        block["input"] = _input(text)
    return block


def _input(text: str) -> Any:
    """What was streamed of an input; a text that was cut stays text."""
    try:
        return json.loads(text) if text else {}
    except ValueError:
        return text
