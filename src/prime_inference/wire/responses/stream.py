"""Chat events to the events of a response: pure, a decoded event in, bytes out.

States, and what is written in each (docs/dialects.md has the grammar):

    waiting    nothing; the first event writes `response.created`, `response.in_progress`
    answering  items one after the other: added, part added, deltas, part done, item done
    over       after one of `response.completed`, `.incomplete`, `.failed`: nothing

A failed response has no `done` for the item that was open: nothing cut looks finished.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prime_inference.domain.errors import UpstreamCut
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import Answer, answer_usage
from prime_inference.wire.openai.blocks import Block, Blocks, Step
from prime_inference.wire.openai.errors import ErrorObject
from prime_inference.wire.responses.response import INCOMPLETE, ResponseHead, part

DELTAS = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "refusal": "response.refusal",
    "call": "response.function_call_arguments",
}
SAID = {"reasoning": "text", "text": "text", "refusal": "refusal", "call": "arguments"}
"""Under which name an event `done` has all that was said."""

_encoder = msgspec.json.Encoder()


class ResponseStream:
    """Turns one chat answer, streamed or whole, into one response.

    `feed` each event; then `finish` and `last`, or `fail`. `document` is the object as it
    stands, and whole after these.
    """

    def __init__(self, head: ResponseHead) -> None:
        self._head = head
        self._blocks = Blocks()
        self._output: list[dict[str, Any]] = []  # items that are done
        self._open: Block | None = None
        self._said = (b"", b"")  # a delta of the open block, before its number and before its text
        self._number = 0
        self._usage: Usage | None = None
        self._cost: object = None
        self._status = "in_progress"
        self._incomplete: str | None = None
        self._error: dict[str, str] | None = None

    @property
    def document(self) -> dict[str, Any]:
        return self._head.response(
            self._status,
            self._output,
            usage=self._usage,
            cost=self._cost,
            incomplete=self._incomplete,
            error=self._error,
        )

    def feed(self, answer: Answer) -> bytes:
        """Events to send for one chat event, or for a whole answer."""
        if answer.usage is not None:
            self._usage, self._cost = answer_usage(answer), answer.usage.cost
        pieces = [self._start()] if not self._number else []
        pieces += [self._step(step) for step in self._blocks.feed(answer)]
        return b"".join(pieces)

    def finish(self) -> bytes:
        """Close what is open of an answer that is whole. Raises UpstreamCut."""
        finish = self._blocks.finish
        if finish is None:
            raise UpstreamCut("The model's answer ended early.")
        steps = list(self._blocks.end())
        self._incomplete = INCOMPLETE.get(finish)
        pieces = [self._start()] if not self._number else []
        for number, step in enumerate(steps, 1):
            # the last item is the one that was cut short
            cut = self._incomplete is not None and number == len(steps)
            pieces.append(self._step(step, "incomplete" if cut else "completed"))
        self._status = "incomplete" if self._incomplete else "completed"
        return b"".join(pieces)

    def last(self) -> bytes:
        """The last event, with the whole object."""
        return self._event(f"response.{self._status}", {"response": self.document})

    def fail(self, error: ErrorObject) -> bytes:
        """The last events of an answer that ended in an error."""
        start = self._start() if not self._number else b""
        if self._open is not None:
            self._output.append(self._head.item(self._open, "incomplete", self._open.text))
        self._status = "failed"
        self._error = {"code": "server_error", "message": error.message}
        return start + self.last()

    def _start(self) -> bytes:
        response = self.document
        return b"".join(
            self._event(f"response.{name}", {"response": response})
            for name in ("created", "in_progress")
        )

    def _step(self, step: Step, status: str = "completed") -> bytes:
        block = step.block
        if step.what == "say":
            return self._event(
                f"{DELTAS[block.kind]}.delta",
                {**self._at(block), "delta": step.piece, **_log(block)},
            )
        if step.what == "open":
            return self._opening(block)
        return self._closing(block, status)

    def _opening(self, block: Block) -> bytes:
        self._open = block
        kind = f"{DELTAS[block.kind]}.delta".encode()
        self._said = (
            b'event: %b\ndata: {"type":"%b","sequence_number":' % (kind, kind),
            b',%b,"delta":' % _encoder.encode({**self._at(block), **_log(block)})[1:-1],
        )
        item = self._head.item(block, "in_progress", "")
        added = self._event(
            "response.output_item.added", {"output_index": block.index, "item": item}
        )
        if block.kind == "call":
            return added
        return added + self._event(
            "response.content_part.added", {**self._at(block), "part": part(block, "")}
        )

    def _closing(self, block: Block, status: str) -> bytes:
        self._open = None
        text = block.text
        item = self._head.item(block, status, text)
        self._output.append(item)
        done = {**self._at(block), SAID[block.kind]: text, **_log(block)}
        if block.kind == "call":
            done["name"] = block.name
        pieces = [self._event(f"{DELTAS[block.kind]}.done", done)]
        if block.kind != "call":
            pieces.append(
                self._event(
                    "response.content_part.done", {**self._at(block), "part": part(block, text)}
                )
            )
        pieces.append(
            self._event("response.output_item.done", {"output_index": block.index, "item": item})
        )
        return b"".join(pieces)

    def _at(self, block: Block) -> dict[str, Any]:
        where: dict[str, Any] = {
            "item_id": self._head.item_id(block),
            "output_index": block.index,
        }
        if block.kind != "call":
            where["content_index"] = 0
        return where

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        body = _encoder.encode({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)


def _log(block: Block) -> dict[str, Any]:
    """A text's events have logprobs, of which there are none here."""
    return {"logprobs": []} if block.kind == "text" else {}
