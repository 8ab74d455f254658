"""One JSON value read from a stream as it comes, character for character.

Only its end is looked for: brackets are matched and strings are followed, so that markers
inside strings are text. Whether it is JSON is judged when it is whole. A value that cannot be
JSON any more (a bracket that does not match, a `<` outside a string, or a closing mark inside a
string that already held a raw line break) ends there, so that one broken call does not swallow
the calls behind it.
"""

from __future__ import annotations

import re

from prime_inference.toolcalls.reader import Marks, Reader, Sink, Steps, skip_space

# Everything that does not change the depth: whole strings and what is between them.
_RUN = re.compile(
    r'(?:[^"{}\[\]<]++|"(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+")*+',
)
_STRING = re.compile(r'(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+')
_LOOSE_STRING = re.compile(r'(?:[^"\\<]++|\\.)*+', re.DOTALL)
_SCALAR = re.compile(r"[-+.\w]*")
_OPENS = {"}": "{", "]": "["}


def copy_json(reader: Reader, closers: Marks | None, sink: Sink) -> Steps[bool]:
    """Passes one JSON value on; whether it came to its end.

    `closers` are the marks that end a call; they are looked for only in broken strings.
    """
    return (yield from _Value(reader, closers, sink).read())


def copy_object_rest(reader: Reader, closers: Marks | None, sink: Sink) -> Steps[bool]:
    """Passes on the rest of an object behind one of its members; whether it came to its end."""
    value = _Value(reader, closers, sink)
    return (yield from value.rest_of_object())


def copy_brackets(reader: Reader) -> Steps[str]:
    """The brackets that close more than was open, which models write behind a value."""
    parts: list[str] = []
    while (yield from skip_space(reader)) and reader.text[reader.at] in _OPENS:
        parts.append(reader.text[reader.at])
        reader.at += 1
    return "".join(parts)


class _Value:
    def __init__(self, reader: Reader, closers: Marks | None, sink: Sink) -> None:
        self._reader = reader
        self._closers = closers
        self._sink = sink
        self._open: list[str] = []
        self._at = 0  # how far the text is understood; passed on up to here before each pause

    def _pass_on(self) -> None:
        reader = self._reader
        if self._at > reader.at:
            self._sink(reader.text[reader.at : self._at])
            reader.at = self._at

    def _pause(self) -> Steps[bool]:
        """Passes on what is understood and waits; false if there is no more."""
        self._pass_on()
        if self._reader.ended:
            return False
        yield
        self._at = self._reader.at
        return True

    def read(self) -> Steps[bool]:
        self._at = self._reader.at
        while self._at >= len(self._reader.text):
            if not (yield from self._pause()):
                return False
        first = self._reader.text[self._at]
        if first in "{[":
            whole = yield from self._container()
        elif first == '"':
            self._at += 1
            whole = yield from self._string()
        else:
            whole = yield from self._scalar()
        self._pass_on()
        return whole

    def rest_of_object(self) -> Steps[bool]:
        self._open.append("{")
        self._at = self._reader.at
        whole = yield from self._container()
        self._pass_on()
        return whole

    def _scalar(self) -> Steps[bool]:
        some = False
        while True:
            found = _SCALAR.match(self._reader.text, self._at)
            assert found is not None
            some = some or found.end() > self._at
            self._at = found.end()
            if self._at < len(self._reader.text):
                return some
            if not (yield from self._pause()):
                return some

    def _container(self) -> Steps[bool]:
        while True:
            text = self._reader.text
            found = _RUN.match(text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at == len(text):
                if not (yield from self._pause()):
                    return False
                continue
            char = text[self._at]
            if char in "{[":
                self._open.append(char)
            elif char == '"':
                self._at += 1
                if not (yield from self._string()):
                    return False
                continue
            elif char == "<" or self._open.pop() != _OPENS[char]:
                return False
            self._at += 1
            if not self._open:
                return True

    def _string(self) -> Steps[bool]:
        """The rest of a string, past its closing quote."""
        while True:
            text = self._reader.text
            found = _STRING.match(text, self._at)
            assert found is not None
            self._at = found.end()
            left = text[self._at : self._at + 1]
            if left == '"':
                self._at += 1
                return True
            if left and (left != "\\" or self._at + 1 < len(text)):
                return (yield from self._loose_string())
            if not (yield from self._pause()):
                return False

    def _loose_string(self) -> Steps[bool]:
        """The rest of a string that held a raw control character, which JSON forbids."""
        while True:
            text = self._reader.text
            found = _LOOSE_STRING.match(text, self._at)
            assert found is not None
            self._at = found.end()
            left = text[self._at : self._at + 1]
            if left == '"':
                self._at += 1
                return True
            if left == "<":
                if self._closes(text):
                    return False
                if self._closers is None or not self._closers.may_begin(text, self._at):
                    self._at += 1
                    continue
                if self._reader.ended:
                    self._at = len(text)
            if not (yield from self._pause()):
                return False

    def _closes(self, text: str) -> bool:
        return self._closers is not None and self._closers.match(text, self._at) is not None
