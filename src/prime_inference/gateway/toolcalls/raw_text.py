"""Deltas of raw text: the parser's events in the shape of chat completions."""

from __future__ import annotations

from collections.abc import Iterable

from prime_inference.toolcalls.call_sink import judged_elsewhere
from prime_inference.toolcalls.events import (
    ArgumentsPart,
    CallBegun,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from prime_inference.toolcalls.format import ToolFormat
from prime_inference.toolcalls.parser import Parser, ReasoningMode
from prime_inference.toolcalls.tools import ToolSet
from prime_inference.toolcalls.validate import Bucket
from prime_inference.wire.openai.answers import FunctionDelta, Message, ToolCallDelta


class RawText:
    """Reads one choice. Implements `wire.openai.calls.TextReader`.

    `broken` has the calls that held text that their format has no place for, or have no end.
    """

    def __init__(
        self, form: ToolFormat, tools: ToolSet, reasoning: ReasoningMode, *, calls: bool = True
    ) -> None:
        self._parser = Parser(form, tools, reasoning=reasoning, calls=calls, check=judged_elsewhere)
        self.broken: set[int] = set()

    def feed(self, text: str) -> Message:
        return self._delta(self._parser.feed(text))

    def finish(self, *, cut: bool) -> Message:
        broken = self.broken.copy()
        delta = self._delta(self._parser.finish(cut=cut))
        if cut:  # that the last call has no end is not the model's doing
            self.broken = broken
        return delta

    @property
    def amid_call(self) -> bool:
        return self._parser.amid_call

    @property
    def amid_markup(self) -> bool:
        return self._parser.amid_call or self._parser.amid_opening

    def _delta(self, events: Iterable[Event]) -> Message:
        content: list[str] = []
        reasoning: list[str] = []
        calls: list[ToolCallDelta] = []
        for event in events:
            match event:
                case Content():
                    content.append(event.text)
                case Reasoning():
                    reasoning.append(event.text)
                case CallBegun():
                    function = FunctionDelta(event.name, "")
                    calls.append(ToolCallDelta(event.index, event.id, "function", function))
                case ArgumentsPart():
                    _add(calls, event)
                case CallEnded():
                    if any(p.bucket == Bucket.INVALID_JSON for p in event.problems):
                        self.broken.add(event.index)
        return Message(
            content="".join(content) or None,
            reasoning_content="".join(reasoning) or None,
            tool_calls=calls or None,
        )


def _add(calls: list[ToolCallDelta], part: ArgumentsPart) -> None:
    """Arguments go with what the same delta has of their call already."""
    last = calls[-1] if calls else None
    if last is not None and last.index == part.index and last.function is not None:
        last.function.arguments = (last.function.arguments or "") + part.text
    else:
        calls.append(ToolCallDelta(part.index, function=FunctionDelta(arguments=part.text)))
