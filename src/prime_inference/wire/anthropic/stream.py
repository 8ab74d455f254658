"""Chat events to the events of a message: pure, a decoded event in, bytes out.

States, and what is written in each (docs/dialects.md has the grammar):

    waiting    nothing; the first event writes `message_start`
    answering  blocks one after the other: start, deltas, stop
    over       after `message_delta` and `message_stop`, or after `error`: nothing
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from prime_inference.domain.errors import ToolCallBroken, UpstreamCut
from prime_inference.domain.usage import NO_USAGE, Usage
from prime_inference.wire.anthropic.errors import in_band_type
from prime_inference.wire.openai.answers import Answer, answer_usage, cost_of
from prime_inference.wire.openai.blocks import Block, Blocks, Step
from prime_inference.wire.openai.calls import is_object
from prime_inference.wire.openai.errors import ErrorObject

STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
"""Finish reasons in Anthropic's words."""

SIGNATURE = "unsigned"
"""Of thinking blocks: clients keep only those that have one; nobody checks it."""

DELTAS = {
    "reasoning": (b"thinking_delta", b"thinking"),
    "text": (b"text_delta", b"text"),
    "refusal": (b"text_delta", b"text"),
    "call": (b"input_json_delta", b"partial_json"),
}
SAID = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
)

_encoder = msgspec.json.Encoder()


class MessageStream:
    """Turns one chat answer, streamed or whole, into one message.

    `feed` each event; then `finish` and `last`, or `fail`. `document` is the whole message
    after `finish`.
    """

    def __init__(self, *, request_id: str, model: str) -> None:
        self._id = f"msg_{request_id}"
        self._request_id = request_id
        self._model = model
        self._blocks = Blocks()
        self._started = False
        self._usage = NO_USAGE
        self._cost: object = None
        self.document: dict[str, Any] = {}

    def feed(self, answer: Answer) -> bytes:
        """Events to send for one chat event, or for a whole answer."""
        if answer.usage is not None:
            self._usage, self._cost = answer_usage(answer), answer.usage.cost
        return self._start() + b"".join(map(self._step, self._blocks.feed(answer)))

    def finish(self) -> bytes:
        """Close what is open of an answer that is whole. Raises UpstreamCut, ToolCallBroken."""
        finish = self._blocks.finish
        if finish is None:
            raise UpstreamCut("The model's answer ended early.")
        steps = list(self._blocks.end())
        content = self._content(cut=finish in ("length", "stop"))
        self.document = self._message(content, self._stop_reason(finish), self._usage)
        return self._start() + b"".join(map(self._step, steps))

    def last(self) -> bytes:
        """The last two events: why the message ended, and what it cost."""
        delta = {"stop_reason": self.document["stop_reason"], "stop_sequence": None}
        usage = self.document["usage"]
        return _event("message_delta", delta=delta, usage=usage) + _event("message_stop")

    def fail(self, error: ErrorObject) -> bytes:
        """The last event of an answer that ended in an error."""
        told = {"type": in_band_type(error), "message": error.message}
        return _event("error", error=told, request_id=self._request_id)

    # -- the message

    def _message(
        self, content: list[dict[str, Any]], stop_reason: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": usage_object(usage, self._cost),
        }

    def _stop_reason(self, finish: str) -> str:
        if finish == "stop" and any(block.kind == "refusal" for block in self._blocks.all):
            return "refusal"
        if finish == "stop" and any(block.kind == "call" for block in self._blocks.all):
            # a named call ends with OpenAI's "stop" as well
            return "stop_sequence" if self._has_cut_call else "tool_use"
        return STOPS.get(finish, "end_turn")

    @property
    def _has_cut_call(self) -> bool:
        return any(b.kind == "call" and not is_object(b.text) for b in self._blocks.all)

    def _content(self, *, cut: bool) -> list[dict[str, Any]]:
        """The whole message's blocks. A call that was cut has no input."""
        content = []
        for block in self._blocks.all:
            whole = self._opening(block)
            if block.kind == "reasoning":
                whole |= {"thinking": block.text, "signature": SIGNATURE}
            elif block.kind == "call":
                whole["input"] = _input(block, cut=cut)
            else:
                whole["text"] = block.text
            content.append(whole)
        return content

    # -- its events

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return _event("message_start", message=self._message([], None, NO_USAGE))

    def _opening(self, block: Block) -> dict[str, Any]:
        if block.kind == "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        if block.kind == "call":
            # what a tool's result names; ours where the engine gave none
            call_id = block.id or f"toolu_{self._request_id}_{block.index}"
            return {"type": "tool_use", "id": call_id, "name": block.name, "input": {}}
        return {"type": "text", "text": ""}

    def _step(self, step: Step) -> bytes:
        block = step.block
        if step.what == "open":
            return _event(
                "content_block_start", index=block.index, content_block=self._opening(block)
            )
        if step.what == "say":  # nearly every event: by hand, it costs half as much
            kind, name = DELTAS[block.kind]
            return SAID % (block.index, kind, name, _encoder.encode(step.piece))
        signed = b""
        if block.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": SIGNATURE}
            signed = _event("content_block_delta", index=block.index, delta=delta)
        return signed + _event("content_block_stop", index=block.index)


def _input(block: Block, *, cut: bool) -> Raw | dict[str, Any]:
    """A call's input, as the model wrote it. Raises ToolCallBroken if it is no object.

    Of calls that were not cut, the chat path has made sure before the answer was charged.
    """
    text = block.text
    if not text.strip() or (cut and not is_object(text)):
        return {}
    if not is_object(text):
        raise ToolCallBroken("The model called a tool with arguments that are no JSON object.")
    return Raw(text.encode())


def usage_object(usage: Usage, cost: object = None) -> dict[str, Any]:
    """Token counts as Anthropic writes them: what was cached is not part of the input."""
    return {
        "input_tokens": max(usage.prompt_tokens - usage.cached_tokens, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        **cost_of(cost),
    }


def _event(kind: str, **fields: Any) -> bytes:
    body = _encoder.encode({"type": kind, **fields})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)
