"""The unread text of a stream, and the ways of reading it.

Everything here is a generator that yields when it needs more text. It decides by the text
alone, never by where it was cut: whatever could still turn out either way is held until more
text comes or the stream ends. What is held is bounded, so that no text is read twice but for a
few hundred characters, whatever the chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from functools import lru_cache
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
Sink: TypeAlias = Callable[[str], object]

# Whitespace that may stand between two markers and still belong to them. Templates write two
# characters; indented imitations a few dozen.
MOST_SPACE = 64
SPACE = " \t\r\n"

_NOT_SPACE = re.compile(r"[^ \t\r\n]")


class Reader:
    """Text that has come and is not yet read; `at` is the next character.

    From `mark` on, if it is set, text is kept that has been read, to go back to.
    """

    __slots__ = ("at", "ended", "mark", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.mark: int | None = None

    def add(self, text: str) -> None:
        if self.mark is not None:
            self.text, self.at, self.mark = self.text[self.mark :] + text, self.at - self.mark, 0
            return
        self.text = self.text[self.at :] + text if self.at < len(self.text) else text
        self.at = 0

    def starts_with(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)


class Marks:
    """A set of strings to look for; of two that begin at the same place the longer is found."""

    __slots__ = ("_heads", "_longest", "_pattern", "marks")

    def __init__(self, *marks: str) -> None:
        self.marks = tuple(sorted(marks, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.marks)))
        self._heads = tuple({mark[0] for mark in marks})
        self._longest = len(self.marks[0])

    def find(self, text: str, at: int) -> re.Match[str] | None:
        return self._pattern.search(text, at)

    def match(self, text: str, at: int) -> str | None:
        """The mark that stands here."""
        found = self._pattern.match(text, at)
        return None if found is None else found.group()

    def may_begin(self, text: str, at: int) -> bool:
        """Whether the rest of the text is the beginning of a mark, with more to come."""
        rest = text[at : at + self._longest]
        return any(mark.startswith(rest) and mark != rest for mark in self.marks)

    def held(self, text: str, at: int) -> int:
        """From where on the end of the text could be the beginning of a mark."""
        start = max(at, len(text) - self._longest + 1)
        first = len(text)
        for head in self._heads:
            place = text.find(head, start, first)
            while place >= 0:
                if self.may_begin(text, place):
                    first = place
                    break
                place = text.find(head, place + 1, first)
        return first


@lru_cache(maxsize=64)
def with_mark(marks: Marks, mark: str) -> Marks:
    """The marks and one more."""
    return Marks(*marks.marks, mark)


class Header:
    """A piece of text of bounded length with fields, such as a call's opening with its name.

    Its parts are what stands there as it is, and `(name, pattern)` of fields. It is known as
    soon as possible whether text can still become a header; therefore a field's pattern must
    match every beginning of what it matches, such as a repeated class does.
    """

    __slots__ = ("_beginning", "_whole")

    def __init__(self, *parts: str | tuple[str, str]) -> None:
        whole, beginning = "", ""
        for part in parts:
            whole += f"(?P<{part[0]}>{part[1]})" if isinstance(part, tuple) else re.escape(part)
        for part in reversed(parts):
            if isinstance(part, tuple):
                beginning = f"(?:{part[1]}(?:{beginning})?)?" if beginning else f"(?:{part[1]})?"
            else:
                for char in reversed(part):
                    tail = f"(?:{beginning})?" if beginning else ""
                    beginning = re.escape(char) + tail
        self._whole = re.compile(whole)
        self._beginning = re.compile(f"(?:{beginning})?")

    def read(self, reader: Reader) -> Steps[re.Match[str] | None]:
        """The header that stands here, past which the reader then is; None if there is none."""
        while True:
            found = self._whole.match(reader.text, reader.at)
            if found is not None:
                reader.at = found.end()
                return found
            if reader.ended or not self._beginning.fullmatch(reader.text, reader.at):
                return None
            yield


def space(name: str) -> tuple[str, str]:
    """A field of whitespace."""
    return name, f"[ \\t\\r\\n]{{0,{MOST_SPACE}}}"


def copy_until(reader: Reader, marks: Marks, sink: Sink) -> Steps[str | None]:
    """Passes text on up to the next mark, where the reader then is; None at the end."""
    while True:
        text, at = reader.text, reader.at
        found = marks.find(text, at)
        if found is not None:
            if found.start() > at:
                sink(text[at : found.start()])
            reader.at = found.start()
            return found.group()
        end = len(text) if reader.ended else marks.held(text, at)
        if end > at:
            sink(text[at:end])
            reader.at = end
        if reader.ended:
            return None
        yield


def skip_space(reader: Reader) -> Steps[bool]:
    """Goes past whitespace; whether any text is left."""
    while True:
        found = _NOT_SPACE.search(reader.text, reader.at)
        if found is not None:
            reader.at = found.start()
            return True
        reader.at = len(reader.text)
        if reader.ended:
            return False
        yield


def peek(reader: Reader, marks: Marks) -> Steps[str | None]:
    """The mark that stands here; None if none does."""
    while not reader.ended and marks.may_begin(reader.text, reader.at):
        yield
    return marks.match(reader.text, reader.at)


def take(reader: Reader, marks: Marks) -> Steps[str | None]:
    """Goes past the mark that stands here and returns it; None if none does."""
    found = yield from peek(reader, marks)
    if found is not None:
        reader.at += len(found)
    return found


def copy_value(
    reader: Reader, close: Marks, followers: Marks, calls: Mapping[str, Header], sink: Sink
) -> Steps[bool]:
    """Passes on a value in tags, up to and past its closing tag; false if it has none.

    A closing tag closes only where one of the `followers` comes next, or the text ends: so a
    value may hold its own closing tag, unless a follower stands right behind it. Behind one that
    it holds, the beginning of a call (`calls`: headers by their first marks) ends it: there the
    model wrote text between the tags.
    """
    marks, either = close, Marks(*close.marks, *calls)
    while True:
        mark = yield from copy_until(reader, marks, sink)
        if mark is None:
            return False
        if mark in calls:
            found = yield from calls[mark].read(reader)
            if found is not None:
                reader.at = found.start()
                if (yield from _followed(reader, found.end(), followers)):
                    return False
        else:
            if (yield from _followed(reader, reader.at + len(mark), followers)):
                reader.at += len(mark)
                return True
            marks = either
        reader.at += len(mark)
        sink(mark)


def _followed(reader: Reader, offset: int, followers: Marks) -> Steps[bool]:
    """Whether a follower comes next behind the offset, but for whitespace."""
    offset -= reader.at  # the text may move under us; what is unread keeps its distance
    while True:
        start = reader.at + offset
        found = _NOT_SPACE.search(reader.text, start)
        place = len(reader.text) if found is None else found.start()
        if place - start > MOST_SPACE:
            return False
        if followers.match(reader.text, place) is not None:
            return True
        if reader.ended:
            return found is None
        if not followers.may_begin(reader.text, place):
            return False
        yield
