"""Calls written as one JSON object with a name and the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TypeAlias

import msgspec

from prime_inference.toolcalls.call_sink import CallSink, read_behind
from prime_inference.toolcalls.format import Frame, Opening, ToolFormat
from prime_inference.toolcalls.grammar import Grammar, literal
from prime_inference.toolcalls.json_reader import copy_brackets, copy_json, copy_object_rest
from prime_inference.toolcalls.json_rules import JsonRules, Note
from prime_inference.toolcalls.reader import (
    MOST_SPACE,
    SPACE,
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

_KEYS = ("arguments", "parameters")

_Part: TypeAlias = str | tuple[str, str]  # of a header


class JsonCall(ToolFormat):
    """`begin` before {"name": ..., key: {...}} behind `end`.

    `key` is the member that holds the arguments; both names in use are read. With `tags`, marks
    that stand before the object, whatever object follows a tag is taken for a call if it has a
    name. `bare` objects without a tag are taken for one only if they surely are. `closing` ends
    a call or, of bare ones, stands between two.
    """

    def __init__(
        self,
        name: str,
        models: str,
        frame: Frame,
        *,
        key: str,
        before: str = "",
        behind: str = "",
        tags: tuple[str, ...] = (),
        bare: bool = False,
        closing: tuple[str, ...],
        stray: tuple[str, ...] = (),
        think: tuple[str, str] = ("<think>", "</think>"),
    ) -> None:
        super().__init__(name, models, frame, stray, think)
        self._key = key
        self._before = before
        self._behind = behind
        self._tags = tags
        self._bare = bare
        self._ends = Marks(*closing)
        self._stops = Marks(*closing, *tags)  # where a broken call is over

    def arguments_rule(
        self, grammar: Grammar, shape: Shape, definitions: Definitions, stem: str, note: Note
    ) -> str:
        return JsonRules(grammar, definitions, stem, note).value(shape, "")

    def around_arguments(self, name: str) -> tuple[str, str]:
        return literal(f'{self._before}{name}", "{self._key}": '), literal(self._behind)

    def render(self, name: str, arguments: Mapping[str, object], index: int) -> str:
        return self.replay(name, json.dumps(arguments, ensure_ascii=False), index)

    def replay(self, name: str, arguments: str, index: int) -> str:
        before, behind = f'{self.frame.begin}{self._before}{name}", "{self._key}": ', self._behind
        return f"{before}{arguments}{behind}{self.frame.end}"

    @cached_property
    def openers(self) -> Marks:
        return Marks(*self._tags, *(["{"] if self._bare else []))

    @property
    def ends(self) -> Marks:
        return self._ends

    @cached_property
    def _headers(self) -> dict[str, Header]:
        return {mark: _header(mark) for mark in {*self.openers.marks, "{"}}

    @cached_property
    def _objects(self) -> dict[str, Header]:
        return {tag: Header(tag, space("s0"), "{") for tag in self._tags}

    def open(
        self, reader: Reader, tools: ToolSet, *, known_only: bool, at_start: bool
    ) -> Steps[Opening | str]:
        mark = self.openers.match(reader.text, reader.at) or "{"  # of a call that follows another
        known_only = known_only or (self._bare and not (at_start or mark in self._tags))
        found = yield from self._headers[mark].read(reader)
        if found is not None:
            if found["key"] in _KEYS and (not known_only or found["name"] in tools.by_name):
                return Opening(found["name"])
            reader.at = found.start()
        if mark in self._tags and not known_only:
            return (yield from self._open_object(mark, reader))
        reader.at += len(mark)
        return mark

    def _open_object(self, tag: str, reader: Reader) -> Steps[Opening | str]:
        """Reads the object behind a tag to its end: its members come in no usual order."""
        found = yield from self._objects[tag].read(reader)
        if found is None:
            reader.at += len(tag)
            return tag
        reader.at -= 1  # the brace is part of the object
        parts: list[str] = []
        whole = yield from copy_json(reader, self._stops, parts.append)
        text = "".join(parts)
        opening = _named_object(text) if whole else None
        return found.group()[:-1] + text if opening is None else opening

    def read(self, reader: Reader, sink: CallSink) -> Steps[None]:
        if sink.given is not None:
            sink.write(sink.given)
        else:
            yield from skip_space(reader)
            if not (yield from copy_json(reader, self._stops, sink.write)):
                yield from self._read_broken(reader, sink)
                return
            yield from self._read_rest(reader, sink)
        if self._bare:
            if brackets := (yield from copy_brackets(reader)):
                sink.broken("text behind the arguments", brackets)
        elif not (yield from self._is_followed(reader, sink)):
            yield from read_behind(reader, self._stops, self._ends, sink)

    def _is_followed(self, reader: Reader, sink: CallSink) -> Steps[bool]:
        """Whether another call stands here, with no mark between; the reader then is there."""
        found = yield from _ANOTHER.read(reader)
        sink.followed = found is not None and found["key"] in _KEYS
        if found is not None:
            reader.at = found.end("behind") if sink.followed else found.start()
        return sink.followed

    def _read_broken(self, reader: Reader, sink: CallSink) -> Steps[None]:
        """Reads the rest of arguments that are no JSON: all there is up to the call's end."""
        mark = yield from self._copy_to_end(reader, sink)
        if mark is None:
            sink.broken("the call was cut off")
        elif sink.is_empty:
            sink.broken("the call has no arguments")

    def _copy_to_end(self, reader: Reader, sink: CallSink) -> Steps[str | None]:
        if not self._bare:
            return (yield from copy_until(reader, self._stops, sink.write))
        while (mark := (yield from copy_until(reader, self.openers, sink.write))) is not None:
            found = yield from self._headers[mark].read(reader)
            if found is not None:  # the next call
                reader.at = found.start()
                return mark
            sink.write(mark)
            reader.at += len(mark)
        return None

    def _read_rest(self, reader: Reader, sink: CallSink) -> Steps[None]:
        """Reads the rest of the object behind the arguments.

        One that is not closed lacks a bracket, and nobody can know which.
        """
        if (yield from _CLOSED.read(reader)) is not None:
            return
        found = yield from _MORE.read(reader)
        if found is None:
            sink.broken("a bracket is missing")
            return
        reader.at = found.start()
        parts: list[str] = []
        whole = yield from copy_object_rest(reader, self._stops, parts.append)
        rest = "".join(parts).strip()
        if not whole or _named_object('{"name": ""' + rest) is None:
            sink.broken("text behind the arguments", rest)


_CLOSED = Header(space("s0"), "}")
_MORE = Header(space("s0"), ",", space("s1"), '"')  # another member of the object


def _header(*lead: _Part) -> Header:
    # Models double a brace that they saw doubled in a template.
    brace: tuple[_Part, ...] = () if lead == ("{",) else (space("s0"), "{", ("again", "[{]?"))
    return Header(
        *lead, *brace, space("s1"), '"name"', space("s2"), ":", space("s3"),
        '"', ("name", r'[^"\\\x00-\x1f]{1,256}'), '"', space("s4"), ",", space("s5"),
        '"', ("key", "[a-z]{1,10}"), '"', space("s6"), ":",
    )  # fmt: skip


_ANOTHER = _header(("behind", f"[{SPACE}]{{0,{MOST_SPACE}}},?"))


def _named_object(text: str) -> Opening | None:
    """The call that an object amounts to, if it has a name. No arguments are none at all."""
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        name = msgspec.json.decode(members["name"], type=str)
    except (msgspec.DecodeError, RecursionError, KeyError):  # no JSON, or no name
        return None
    raw = next((members[key] for key in _KEYS if key in members), None)
    return Opening(name, arguments="{}" if raw is None else bytes(raw).decode())
