"""Tells whether JSON text that comes in pieces is whole, looking at each character once: pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_OPENING = frozenset("{[")


class JsonEnd:
    """Follows the brackets of one document; it is decoded once, where the last one closes."""

    __slots__ = ("_closed", "_depth", "_escaped", "_in_string", "_seen", "_spoiled", "_whole")

    def __init__(self) -> None:
        self._seen = 0  # pieces that have been looked at
        self._depth = 0
        self._closed = False  # a bracket did, since it was last decoded
        self._in_string = False
        self._escaped = False  # the last character was a backslash inside a string
        self._whole = False
        self._spoiled = False  # it closed and was no JSON, or went on

    def is_whole(self, pieces: Sequence[str]) -> bool:
        """Whether the pieces, those of the calls before and more, are an object or an array."""
        new = pieces[self._seen :]
        self._seen = len(pieces)
        for piece in new:
            if self._whole and piece.strip():
                self._whole, self._spoiled = False, True
            self._follow(piece)
        if self._closed and not (self._spoiled or self._depth or self._in_string):
            self._closed = False
            self._whole = _is_json("".join(pieces))
            self._spoiled = not self._whole
        return self._whole

    def is_begun(self, pieces: Sequence[str]) -> bool:
        """Whether they can still become one: brackets are open."""
        whole = self.is_whole(pieces)
        return not whole and not self._spoiled and self._depth > 0

    def _follow(self, text: str) -> None:
        at = 1 if self._escaped and text else 0
        self._escaped = self._escaped and not text
        while True:
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, at)
            if found is None:
                return
            mark, at = found.group(), found.end()
            if mark == '"':
                self._in_string = not self._in_string
            elif mark == "\\":
                self._escaped = at == len(text)
                at += 1
            else:
                self._depth += 1 if mark in _OPENING else -1
                self._closed |= mark not in _OPENING


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True
