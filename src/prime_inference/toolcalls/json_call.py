"""Calls written as one JSON object with a name and the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property

import msgspec

from prime_inference.toolcalls.call_sink import CallSink
from prime_inference.toolcalls.format import Frame, Opening, ToolFormat
from prime_inference.toolcalls.grammar import Grammar, literal
from prime_inference.toolcalls.json_reader import copy_json, copy_object_rest
from prime_inference.toolcalls.json_rules import JsonRules, Note
from prime_inference.toolcalls.reader import (
    Header,
    Marks,
    Reader,
    Steps,
    copy_until,
    skip_space,
    space,
    take,
)
from prime_inference.toolcalls.shapes import Definitions, Shape
from prime_inference.toolcalls.tools import ToolSet

_KEYS = ("arguments", "parameters")


class JsonCall(ToolFormat):
    """`begin` before {"name": ..., key: {...}} behind `end`.

    `key` is the member that holds the arguments; both names in use are read. With `tags`, marks
    that stand before the object, whatever object follows a tag is taken for a call if it has a
    name. `bare` objects without a tag are taken for one only if they surely are.
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
        self.name = name
        self.models = models
        self.frame = frame
        self.stray = stray
        self.think = think
        self._key = key
        self._before = before
        self._behind = behind
        self._tags = tags
        self._bare = bare
        self._closing = Marks(*closing)

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

    @cached_property
    def _headers(self) -> dict[str, Header]:
        return {mark: _header(mark) for mark in self.openers.marks}

    @cached_property
    def _objects(self) -> dict[str, Header]:
        return {tag: Header(tag, space("s0"), "{") for tag in self._tags}

    def open(
        self, reader: Reader, tools: ToolSet, *, known_only: bool, at_start: bool
    ) -> Steps[Opening | str]:
        mark = self.openers.match(reader.text, reader.at)
        assert mark is not None, "called where an opener stands"
        known_only = known_only or not (at_start or mark in self._tags)
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
        whole = yield from copy_json(reader, self._closing, parts.append)
        text = "".join(parts)
        opening = _named_object(text) if whole else None
        return found.group()[:-1] + text if opening is None else opening

    def read(self, reader: Reader, sink: CallSink) -> Steps[None]:
        if sink.given is not None:
            sink.write(sink.given)
            return
        yield from skip_space(reader)
        if (yield from copy_json(reader, self._closing, sink.write)):
            yield from self._read_rest(reader, sink)
            return
        mark = None
        if self._tags and not self._bare:
            mark = yield from copy_until(reader, self._closing, sink.write)
        if mark is None:
            sink.broken("the call was cut off")
        elif sink.is_empty:
            sink.broken("the call has no arguments")

    def _read_rest(self, reader: Reader, sink: CallSink) -> Steps[None]:
        """Reads the rest of the object; the arguments are complete whatever it is."""
        parts: list[str] = []
        whole = yield from copy_object_rest(reader, self._closing, parts.append)
        rest = "".join(parts).strip()
        if rest in ("", "}"):
            return
        if not whole or _named_object('{"name": ""' + rest) is None:
            sink.broken("text behind the arguments", rest)

    def after(self, reader: Reader) -> Steps[None]:
        yield from skip_space(reader)
        yield from take(reader, self._closing)


def _header(mark: str) -> Header:
    brace = () if mark.endswith("{") else (space("s0"), "{")
    return Header(
        mark, *brace, space("s1"), '"name"', space("s2"), ":", space("s3"),
        '"', ("name", r'[^"\\\x00-\x1f]{1,256}'), '"', space("s4"), ",", space("s5"),
        '"', ("key", "[a-z]{1,10}"), '"', space("s6"), ":",
    )  # fmt: skip


def _named_object(text: str) -> Opening | None:
    """The call that an object amounts to, if it has a name. No arguments are none at all."""
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        name = msgspec.json.decode(members["name"], type=str)
    except (msgspec.DecodeError, RecursionError, KeyError):  # no JSON, or no name
        return None
    raw = next((members[key] for key in _KEYS if key in members), None)
    return Opening(name, arguments="{}" if raw is None else bytes(raw).decode())
