"""How the values of each of a tool's parameters are read; worked out once for each tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prime_inference.toolcalls.shapes import (
    ANY,
    NEVER,
    Choice,
    Kind,
    Record,
    Shape,
    choice,
    kinds,
)
from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.values import UNTYPED, Reading, reading


class Readings:
    """The readings of one tool's parameters, by name."""

    def __init__(self, tool: Tool, *, python_words: bool) -> None:
        normal = tool.normal
        self._definitions = normal.definitions
        self._alternatives = kinds(normal.shape, normal.definitions)
        self._python_words = python_words
        self._declared = [
            dict(one.properties) if isinstance(one, Record) else {} for one in self._alternatives
        ]
        self._known: dict[str, Reading] = {}
        # All free names have one shape. Its kinds are told apart by identity: comparing them
        # would take as long as reading them anew. A reading keeps its kinds alive.
        self._of_kinds: dict[tuple[int, ...], Reading] = {}

    def of(self, name: str) -> Reading:
        if name not in self._known:
            if len(self._known) > _MOST_NAMES:  # names that a model makes up
                self._known.clear()
                self._of_kinds.clear()
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> Reading:
        pairs = zip(self._alternatives, self._declared, strict=True)
        shape: Shape = tuple(k for one, declared in pairs for k in _property(one, declared, name))
        if shape == NEVER:  # a name that the schema forbids: validation will say so
            shape = ANY
        key = tuple(map(id, shape))
        if key not in self._of_kinds:
            how = reading(shape, self._definitions, python_words=self._python_words)
            self._of_kinds[key] = how
        return self._of_kinds[key]


_MOST_NAMES = 10_000


def _property(kind: Kind, declared: Mapping[str, Shape], name: str) -> Iterator[Kind]:
    if isinstance(kind, Record):
        yield from declared.get(name, kind.free)
    elif isinstance(kind, Choice):
        objects = (value for _, value in kind.containers if isinstance(value, dict))
        found = [value[name] for value in objects if name in value]
        if found:
            yield choice(found)


class _Untyped:
    """Of a tool that is not known nothing is known."""

    def __init__(self, how: Reading) -> None:
        self._how = how

    def of(self, name: str) -> Reading:
        return self._how


_UNTYPED = _Untyped(UNTYPED)
_UNTYPED_PYTHON = _Untyped(reading(ANY, {}, python_words=True))


def readings_of(tool: Tool | None, *, python_words: bool) -> Readings | _Untyped:
    """The readings of a tool's parameters; None is a tool that is not known."""
    if tool is None:
        return _UNTYPED_PYTHON if python_words else _UNTYPED
    key = f"readings {python_words}"
    if key not in tool.__dict__:  # worked out once; the tool is frozen otherwise
        tool.__dict__[key] = Readings(tool, python_words=python_words)
    found = tool.__dict__[key]
    assert isinstance(found, Readings)
    return found
