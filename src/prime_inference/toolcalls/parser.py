"""The model's text, read as it comes, into content, reasoning and calls.

The events depend on the text alone: joined piece by piece they are the same for every way of
cutting it. Two rules hold for all formats. Whitespace that touches a marker (of a call or of
reasoning) belongs to the markers; all other text is content, byte for byte. And what looks
like the opening of a call but is none, by the format's own syntax, is text: nothing that the
model wrote is dropped.

Reasoning ends at its end marker, and a call in it is only thought of: text. Some models call in the
midst of reasoning and end there; so where no end marker comes, the first call of a known tool ends
the reasoning. Which it was is known at the end: from such a call on reasoning is held back.

A text that somebody else cut (a limit of its length, a stop string) ends where it was last
certain: a call has the arguments that had come, not closed, and what may have been the opening
of a call or half a marker is neither content nor call.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from prime_inference.toolcalls.call_sink import CallSink, Check
from prime_inference.toolcalls.effort import check_little
from prime_inference.toolcalls.events import Content, Event, Message, Reasoning, collect
from prime_inference.toolcalls.format import ToolFormat
from prime_inference.toolcalls.reader import (
    SPACE,
    Header,
    Marks,
    Reader,
    Steps,
    copy_until,
    skip_space,
    space,
    take,
    with_mark,
)
from prime_inference.toolcalls.shapes import Steps as Comparisons
from prime_inference.toolcalls.tools import ToolSet

# Of values with what their schema admits, in one answer: 50 ms, and a thousand usual values.
COMPARISONS = 50_000

# Where reasoning stands: nowhere; begun by the prompt already; or where the model begins it.
ReasoningMode: TypeAlias = Literal["none", "opened", "optional"]


class _Prose:
    """Free text; whitespace is held back until it is known whether a marker follows."""

    __slots__ = ("_event", "_events", "_held", "after_marker", "begun")

    def __init__(self, events: list[Event], event: type[Content] | type[Reasoning]) -> None:
        self._events = events
        self._event = event
        self._held: list[str] = []
        self.begun = False  # something other than whitespace has come
        self.after_marker = False  # only whitespace has come since a marker

    def write(self, text: str) -> None:
        solid = text.rstrip(SPACE)
        if not solid:
            self._held.append(text)
            return
        tail = text[len(solid) :]
        self._flush("".join(self._held) + solid if self._held else solid)
        if tail:
            self._held.append(tail)

    def hold(self, opener: str) -> None:
        """What opens a call stands here, and no call: text, unless a call comes next."""
        self._held.append(opener)

    def call(self) -> None:
        """A call comes next; an opener before it was the same, said twice."""
        self._held.clear()
        self.after_marker = True

    def marker(self) -> None:
        """A marker comes next."""
        self._flush("".join(self._held).rstrip(SPACE))
        self.after_marker = True

    def _flush(self, text: str) -> None:
        self._held.clear()
        if self.after_marker:
            text = text.lstrip(SPACE)
        if text:
            self.after_marker = False
            self.begun = True
            self._events.append(self._event(text))

    def end(self) -> None:
        """The text is over."""
        self._flush("".join(self._held))


class Parser:
    """Reads one answer. Its text must be valid Unicode: decode bytes with errors="replace".

    Without `calls` there are none: what looks like one is text. `check` judges the arguments of
    each call when it has ended; if none is given, only where that is surely little work.
    """

    def __init__(
        self,
        form: ToolFormat,
        tools: ToolSet,
        *,
        reasoning: ReasoningMode = "none",
        calls: bool = True,
        check: Check = check_little,
    ) -> None:
        self._finds_calls = calls
        self._check = check
        self._format = form
        self._tools = tools
        self._reader = Reader()
        self._events: list[Event] = []
        self._calls = 0
        self._comparisons = Comparisons(COMPARISONS)
        self._content = _Prose(self._events, Content)
        self._reasoning = _Prose(self._events, Reasoning)
        self._steps = self._answer(reasoning)
        self._opening = False
        self._aside: list[str] = []  # thoughts behind what looks like a call
        self._sink: CallSink | None = None  # of the call that is being read
        self._due: str | None = None  # ends what was opened around calls, and has not come
        self._followed = False  # by another call in the same tag
        self._done = False

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of text makes certain."""
        self._reader.add(text)
        return self._advance()

    @property
    def amid_call(self) -> bool:
        """Whether the text ends, so far, inside a call."""
        return self._sink is not None

    @property
    def amid_opening(self) -> bool:
        """Whether it ends behind a call's first marker, before it is known whether it is a call."""
        return self._opening

    def finish(self, *, cut: bool = False) -> list[Event]:
        """The events that the end of the text makes certain; `cut`: it was not the model's end."""
        if not cut:
            self._reader.ended = True
            return self._advance()
        if self._sink is not None:
            self._sink.cut_off()
            self._content.write("".join(self._sink.behind))
        elif self._aside:
            self._reasoning.write("".join(self._aside))
        elif self._reader.at == len(self._reader.text):  # nothing waits to be decided
            self._reasoning.end()
            self._content.end()
        events = self._events.copy()
        self._events.clear()
        return events

    def _advance(self) -> list[Event]:
        if not self._done:
            self._done = next(self._steps, self) is self  # the generator itself yields None
        events = self._events.copy()
        self._events.clear()
        return events

    def _answer(self, reasoning: ReasoningMode) -> Steps[None]:
        if reasoning != "none":
            yield from self._read_reasoning(opened=reasoning == "opened")
        yield from self._read_content()

    def _read_reasoning(self, *, opened: bool) -> Steps[None]:
        reader, prose = self._reader, self._reasoning
        begin, end = self._format.think
        found = yield from self._begins_with(begin)
        if not found and not opened:
            return
        prose.after_marker = True
        marks = Marks(end, *(self._format.openers.marks if self._finds_calls else ()))
        while True:
            mark = yield from copy_until(reader, marks, prose.write)
            if mark is None:
                prose.end()
                return
            if mark == end:
                reader.at += len(mark)
                break
            if (yield from self._may_be_call(prose)):
                if (yield from self._thinks_on(end)):
                    break
                yield from self._read_call(prose, surely=True)
                return
        prose.marker()
        self._content.after_marker = True

    def _may_be_call(self, prose: _Prose) -> Steps[bool]:
        """Whether a call of a known tool begins here; goes past what only looks like one."""
        reader = self._reader
        reader.mark = reader.at
        self._opening = True
        opening = yield from self._format.open(reader, self._tools, known_only=True, at_start=False)
        self._opening = False
        mark, reader.mark = reader.mark, None
        if isinstance(opening, str):
            self._not_opened(opening, prose)
            return False
        assert mark is not None, "set above"
        reader.at = mark
        return True

    def _thinks_on(self, end: str) -> Steps[bool]:
        """Whether reasoning goes on to its end marker, past which the reader then is.

        If so, a call in it was only thought of. If not, the reader is where it was.
        """
        reader = self._reader
        if (yield from copy_until(reader, Marks(end), self._aside.append)) is not None:
            self._reasoning.write("".join(self._aside))
            self._aside.clear()
            reader.at += len(end)
            return True
        reader.text, reader.at = "".join(self._aside), 0
        self._aside.clear()
        return False

    def _begins_with(self, mark: str) -> Steps[bool]:
        """Goes past the mark if it comes first, but for whitespace; else past nothing."""
        header = Header(space("lead"), mark)
        return (yield from header.read(self._reader)) is not None

    def _read_content(self) -> Steps[None]:
        reader, prose = self._reader, self._content
        while not self._finds_calls:
            if reader.at < len(reader.text):
                prose.write(reader.text[reader.at :])
                reader.at = len(reader.text)
            if reader.ended:
                prose.end()
                return
            yield
        while True:
            if self._followed:
                yield from self._read_call(prose, surely=False)
                continue
            mark = yield from copy_until(reader, self._marks, prose.write)
            if mark is None:
                prose.end()
                return
            if mark == self._due:  # what was opened around calls ends
                prose.marker()
                yield from self._read_ends()
            else:
                yield from self._read_call(prose, surely=False)

    @property
    def _marks(self) -> Marks:
        """What is no text where content stands."""
        openers = self._format.openers
        return openers if self._due is None else with_mark(openers, self._due)

    def _read_ends(self) -> Steps[None]:
        """Goes past what ends calls and what is around them, however often it comes."""
        reader = self._reader
        while (yield from skip_space(reader)):
            mark = yield from take(reader, self._format.ends)
            if mark is None:
                return
            if mark == self._due:
                self._due = None

    def _not_opened(self, text: str, prose: _Prose) -> None:
        """What began like a call is text, or only an opener, which may come once more."""
        if text in self._format.openers.marks:
            prose.hold(text)
        else:
            prose.write(text)

    def _read_call(self, prose: _Prose, *, surely: bool) -> Steps[bool]:
        """Reads the call that begins here, if one does."""
        reader, form = self._reader, self._format
        at_start = not (self._content.begun or surely)
        self._opening = True
        opening = yield from form.open(reader, self._tools, known_only=surely, at_start=at_start)
        self._opening = False
        if isinstance(opening, str):
            self._not_opened(opening, prose)
            return False
        prose.call()
        self._content.call()
        self._due = opening.outer or self._due
        tool = self._tools.get(opening.name)
        sink = CallSink(
            self._events.append, self._calls, opening, tool, self._check, self._comparisons
        )
        self._calls += 1
        self._sink = sink
        yield from form.read(reader, sink)
        sink.end()
        self._sink = None
        self._followed = sink.followed
        if sink.followed:
            return True
        if sink.behind:
            self._content.write("".join(sink.behind))
        else:
            yield from self._read_ends()
        return True


def parse(
    text: str, form: ToolFormat, tools: ToolSet, *, reasoning: ReasoningMode = "none"
) -> Message:
    """A whole answer at once."""
    parser = Parser(form, tools, reasoning=reasoning)
    events = parser.feed(text)
    return collect([*events, *parser.finish()])
