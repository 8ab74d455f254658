"""A chat answer as a sequence of blocks: reasoning, text, refusals, tool calls.

Dialects that send an answer block by block have one open at a time, while the pieces of
a chat stream may come in any order. The rules, pure and the same for a stream and for a
whole answer:

    a piece of the open block               is passed on at once
    a new block while the open one is done  closes that one
    a new block before that                 waits: its pieces are kept until it is its turn

A text is done as soon as another block begins. A call is done when its arguments are a
whole JSON value; what comes for it later can only be white space, or the answer is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Struct

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.openai.answers import Answer, FunctionDelta, Message, ToolCallDelta

BlockKind = Literal["reasoning", "text", "refusal", "call"]

_json = msgspec.json.Decoder()


@dataclass(slots=True, eq=False)
class Block:
    """One part of an answer. `index` is its place; `id` and `name` are a call's."""

    kind: BlockKind
    index: int
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def text(self) -> str:
        """What was said in it so far; of a call, its arguments."""
        return "".join(self.pieces)


class Step(Struct, frozen=True):
    """What happened to a block: it was opened, something was said in it, it was closed."""

    what: Literal["open", "say", "close"]
    block: Block
    piece: str = ""


class Blocks:
    """Takes decoded chat events (or one whole answer), gives steps.

    `finish` is the finish reason, once it is known.
    """

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.finish: str | None = None
        self._calls: dict[int, Block] = {}  # by the chat's index
        self._current: Block | None = None
        self._waiting: list[Block] = []
        self._steps: list[Step] = []  # of the event that is being taken

    def feed(self, answer: Answer) -> list[Step]:
        """The steps that one event makes.

        Raises UpstreamMalformed if a call goes on after its arguments were complete: at once,
        so before anybody has paid for the answer.
        """
        for choice in answer.choices:
            message = choice.delta or choice.message
            if message is not None:
                self._message(message)
            self.finish = choice.finish_reason or self.finish
        return self._taken()

    def end(self) -> list[Step]:
        """Close the open block, and play those that wait."""
        self._close()
        for block in self._waiting:
            self._current = block
            self._steps.append(Step("open", block))
            if text := block.text:
                self._steps.append(Step("say", block, text))
            self._close()
        self._waiting.clear()
        return self._taken()

    def _taken(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps

    def _message(self, message: Message) -> None:
        if reasoning := message.reasoning_content or message.reasoning:
            self._text("reasoning", reasoning)
        if message.content:
            self._text("text", message.content)
        if message.refusal:
            self._text("refusal", message.refusal)
        for position, call in enumerate(message.tool_calls or ()):
            # a whole answer numbers its calls by their places alone
            self._call(call, position if call.index is None else call.index)

    def _text(self, kind: BlockKind, piece: str) -> None:
        last = self.all[-1] if self.all else None
        if last is not None and last.kind == kind and not last.closed:
            self._say(last, piece)
        else:
            self._begin(Block(kind, len(self.all)), piece)

    def _call(self, call: ToolCallDelta, index: int) -> None:
        function = call.function or FunctionDelta()
        arguments = function.arguments or ""
        block = self._calls.get(index)
        if block is None:
            block = Block("call", len(self.all), call.id, function.name or "")
            self._calls[index] = block
            self._begin(block, arguments)
        elif not block.closed:
            self._say(block, arguments)
        elif arguments.strip(" \t\r\n"):
            raise UpstreamMalformed("The upstream went on with a tool call that was complete.")

    def _begin(self, block: Block, piece: str) -> None:
        self.all.append(block)
        current = self._current
        if self._waiting or (current is not None and not _is_done(current)):
            self._waiting.append(block)
        else:
            self._close()
            self._current = block
            self._steps.append(Step("open", block))
        self._say(block, piece)

    def _say(self, block: Block, piece: str) -> None:
        if piece:
            block.pieces.append(piece)
            if block is self._current:
                self._steps.append(Step("say", block, piece))

    def _close(self) -> None:
        if self._current is not None:
            self._current.closed = True
            self._steps.append(Step("close", self._current))
            self._current = None


def _is_done(block: Block) -> bool:
    if block.kind != "call":
        return True
    try:
        _json.decode(block.text)
    except (ValueError, RecursionError):
        return False
    return True
