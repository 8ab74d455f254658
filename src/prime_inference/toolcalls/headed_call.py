"""Calls of a header with the name, then the arguments as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property

from prime_inference.toolcalls.call_sink import CallSink, read_behind
from prime_inference.toolcalls.format import Frame, Opening, ToolFormat
from prime_inference.toolcalls.grammar import Grammar, literal
from prime_inference.toolcalls.json_reader import copy_json
from prime_inference.toolcalls.json_rules import JsonRules, Note, escaped
from prime_inference.toolcalls.reader import (
    Header,
    Marks,
    Reader,
    Steps,
    copy_until,
    skip_space,
    space,
)
from prime_inference.toolcalls.shapes import Definitions, Shape
from prime_inference.toolcalls.tools import ToolSet


class HeadedCall(ToolFormat):
    """`begin` name `before_arguments` JSON `end`, in a section.

    `prefix` stands before the name and `numbered` puts `:` and a number behind it; with them
    the header is the call's id.
    """

    def __init__(
        self,
        name: str,
        models: str,
        frame: Frame,
        *,
        before_arguments: str,
        prefix: str = "",
        numbered: bool = False,
        stray: tuple[str, ...] = (),
        think: tuple[str, str] = ("<think>", "</think>"),
    ) -> None:
        super().__init__(name, models, frame, stray, think)
        self._before_arguments = before_arguments
        self._prefix = prefix
        self._numbered = numbered
        # Inside a string a marker would be a token that ends the call for every other reader.
        self._markers = (
            frame.begin,
            frame.end,
            frame.section_begin,
            frame.section_end,
            before_arguments,
        )

    def arguments_rule(
        self, grammar: Grammar, shape: Shape, definitions: Definitions, stem: str, note: Note
    ) -> str:
        return JsonRules(grammar, definitions, stem, note, self._markers).value(shape, "")

    def around_arguments(self, name: str) -> tuple[str, str]:
        head = literal(f"{self._prefix}{name}{':' if self._numbered else ''}")
        # No conversation numbers its calls beyond six digits.
        number = " [0-9]{1,6} " if self._numbered else " "
        return head + number + literal(self._before_arguments), ""

    def render(self, name: str, arguments: Mapping[str, object], index: int) -> str:
        return self.replay(name, json.dumps(arguments, ensure_ascii=False), index)

    def replay(self, name: str, arguments: str, index: int) -> str:
        number = f":{index}" if self._numbered else ""
        text = escaped(arguments, self._markers)
        head = f"{self.frame.begin}{self._prefix}{name}{number}"
        return f"{head}{self._before_arguments}{text}{self.frame.end}"

    @cached_property
    def openers(self) -> Marks:
        return Marks(self.frame.section_begin, self.frame.begin)

    @cached_property
    def ends(self) -> Marks:
        return Marks(self.frame.end, self.frame.section_end)

    @cached_property
    def _closers(self) -> Marks:
        return Marks(*self.ends.marks, *self.openers.marks)

    @cached_property
    def _header(self) -> Header:
        head = ("head", r"[^\s<]{1,256}")
        return Header(self.frame.begin, space("s1"), head, space("s2"), self._before_arguments)

    @cached_property
    def _section(self) -> Header:
        head = ("head", r"[^\s<]{1,256}")
        return Header(
            self.frame.section_begin, space("s0"),
            self.frame.begin, space("s1"), head, space("s2"), self._before_arguments,
        )  # fmt: skip

    def open(
        self, reader: Reader, tools: ToolSet, *, known_only: bool, at_start: bool
    ) -> Steps[Opening | str]:
        mark = self.openers.match(reader.text, reader.at)
        assert mark is not None, "called where an opener stands"
        in_section = mark == self.frame.section_begin
        header = self._section if in_section else self._header
        found = yield from header.read(reader)
        if found is not None:
            opening = self._opening(found, self.frame.section_end if in_section else None)
            if not known_only or opening.name in tools.by_name:
                return opening
            reader.at = found.start()
        reader.at += len(mark)
        return mark

    def _opening(self, found: re.Match[str], outer: str | None) -> Opening:
        head = found["head"]
        name = head.removeprefix(self._prefix)
        if not self._numbered:
            return Opening(name, outer=outer)
        before, colon, number = name.rpartition(":")
        if colon and number.isdecimal() and before:
            return Opening(before, id=head, outer=outer)
        return Opening(name, outer=outer)

    def read(self, reader: Reader, sink: CallSink) -> Steps[None]:
        yield from skip_space(reader)
        if (yield from copy_json(reader, self._closers, sink.write)):
            yield from read_behind(reader, self._closers, self.ends, sink)
        elif (yield from copy_until(reader, self._closers, sink.write)) is None:
            sink.broken("the call was cut off")
