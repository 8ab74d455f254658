"""Calls with one tag for each argument."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property

from prime_inference.toolcalls.call_sink import CallSink
from prime_inference.toolcalls.format import Frame, Opening, ToolFormat
from prime_inference.toolcalls.grammar import Grammar, literal
from prime_inference.toolcalls.json_rules import Note
from prime_inference.toolcalls.reader import (
    Header,
    Marks,
    Reader,
    Steps,
    copy_until,
    copy_value,
    peek,
    skip_space,
    take,
)
from prime_inference.toolcalls.readings import readings_of
from prime_inference.toolcalls.shapes import PYTHON_WORDS, Definitions, Shape
from prime_inference.toolcalls.tag_rules import TagRules
from prime_inference.toolcalls.tag_style import TagStyle
from prime_inference.toolcalls.tools import ToolSet
from prime_inference.toolcalls.values import LITERAL, STRING, Reading, ValueWriter, quoted


class TaggedCall(ToolFormat):
    """`begin` before name behind parameters `end`.

    Reading: `openings` are the headers of a call, by the mark that begins them, `parameters`
    those of a parameter. `closing` are the marks that end a call; one of them does. `outer` has
    the mark that ends what an opening began around the call. `line` is what stands between the
    tags of a value and the value.
    What is not written so gives arguments that are never closed, so that nobody takes them for
    whole.
    """

    def __init__(
        self,
        name: str,
        models: str,
        frame: Frame,
        style: TagStyle,
        *,
        before: str = "",
        behind: str = "",
        last: str = "",
        openings: Mapping[str, Header],
        parameters: tuple[Header, ...],
        closing: tuple[str, ...],
        outer: Mapping[str, str] | None = None,
        line: str = "",
        stray: tuple[str, ...] = (),
        think: tuple[str, str] = ("<think>", "</think>"),
    ) -> None:
        super().__init__(name, models, frame, stray, think)
        self.style = style
        self._before = before
        self._behind = behind
        self._last = last
        self._openings = dict(openings)
        self._parameters = parameters
        self._line = line
        section = (frame.section_end,) if frame.section_end else ()
        self._closing = Marks(*closing)
        self._ends = Marks(*closing, *section)
        self._outer = dict(outer or {})
        self._stops = Marks(*openings, *section)  # where a call is over that was not closed
        self._closes_value = Marks(style.forbidden, *([line + style.forbidden] if line else []))
        self._next = Marks(style.before, *closing, *self._stops.marks)

    def arguments_rule(
        self, grammar: Grammar, shape: Shape, definitions: Definitions, stem: str, note: Note
    ) -> str:
        return TagRules(grammar, definitions, stem, note, self.style).parameters(shape, "")

    def around_arguments(self, name: str) -> tuple[str, str]:
        return literal(self._before + name + self._behind), literal(self._last)

    def render(self, name: str, arguments: Mapping[str, object], index: int) -> str:
        texts = (self.style.written(k, v, self._text(v)) for k, v in arguments.items())
        inside = "".join(texts)
        head = f"{self.frame.begin}{self._before}{name}{self._behind}"
        return f"{head}{inside}{self._last}{self.frame.end}"

    def _text(self, value: object) -> str:
        text = json.dumps(value, ensure_ascii=False)
        if not self.style.python_words:
            return text
        return next((word for word, word_json in PYTHON_WORDS.items() if word_json == text), text)

    @cached_property
    def openers(self) -> Marks:
        return Marks(*self._openings)

    @property
    def ends(self) -> Marks:
        return self._ends

    def open(
        self, reader: Reader, tools: ToolSet, *, known_only: bool, at_start: bool
    ) -> Steps[Opening | str]:
        mark = self.openers.match(reader.text, reader.at)
        assert mark is not None, "called where an opener stands"
        found = yield from self._openings[mark].read(reader)
        if found is not None:
            if not known_only or found["name"] in tools.by_name:
                return Opening(found["name"], outer=self._outer.get(mark))
            reader.at = found.start()
        reader.at += len(mark)
        return mark

    def read(self, reader: Reader, sink: CallSink) -> Steps[None]:
        readings = readings_of(sink.tool, python_words=self.style.python_words)
        written: set[str] = set()
        while True:
            if not (yield from skip_space(reader)):
                sink.broken("the call was cut off")
                break
            name, how = yield from self._read_parameter_head(reader)
            if name is not None:
                how = how or readings.of(name)
                yield from self._read_parameter(reader, sink, name, how, written)
                continue
            if (yield from peek(reader, self._closing)) is not None:
                break
            if not (yield from self._skip_stray(reader, sink)):
                sink.broken("the call was not closed")
                break
        if not sink.is_broken:
            sink.write("}" if written else "{}")
        elif not written:
            sink.write("{")

    def _read_parameter_head(self, reader: Reader) -> Steps[tuple[str | None, Reading | None]]:
        """The name of the parameter that begins here, and the type that its tag states."""
        for header in self._parameters:
            found = yield from header.read(reader)
            if found is not None:
                stated = found.groupdict().get("string")
                return found["name"], {"true": STRING, "false": LITERAL}.get(stated or "")
        return None, None

    def _read_parameter(
        self, reader: Reader, sink: CallSink, name: str, how: Reading, written: set[str]
    ) -> Steps[None]:
        if name in written:
            sink.broken("an argument is given twice", name)
        sink.write(f"{', ' if written else '{'}{quoted(name)}: ")
        written.add(name)
        if self._line:
            yield from self._skip_line(reader)
        writer = ValueWriter(how, sink.write, sink.steps)
        close, write = self._closes_value, writer.write
        if (yield from copy_value(reader, close, self._next, self._openings, write)):
            writer.close()
        else:
            writer.break_off()
            sink.broken("a value was not closed", name)

    def _skip_line(self, reader: Reader) -> Steps[None]:
        while reader.at >= len(reader.text) and not reader.ended:
            yield
        if reader.starts_with(self._line):
            reader.at += len(self._line)

    def _skip_stray(self, reader: Reader, sink: CallSink) -> Steps[bool]:
        """Goes past text that is no part of a call; false where the call is surely over."""
        if (yield from peek(reader, self._stops)) is not None:
            return False
        stray: list[str] = []
        mark = yield from take(reader, self._next)
        if mark is not None:  # the beginning of a parameter that is none
            stray.append(mark)
        yield from copy_until(reader, self._next, stray.append)
        sink.broken("text that is no argument", "".join(stray).strip())
        return True
