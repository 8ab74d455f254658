"""What a model format is: how its calls are written, constrained and read.

A format module holds one `FORMAT`, an instance of one of the three families (json_call.py,
headed_call.py, tagged_call.py). `load` finds the modules by looking into `formats/`.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.toolcalls import formats
from prime_inference.toolcalls.grammar import Grammar
from prime_inference.toolcalls.json_rules import Note
from prime_inference.toolcalls.reader import Marks, Reader, Steps
from prime_inference.toolcalls.shapes import Definitions, Shape

if TYPE_CHECKING:
    from prime_inference.toolcalls.call_sink import CallSink
    from prime_inference.toolcalls.tools import ToolSet


class Opening(msgspec.Struct, frozen=True):
    """The opening of a call, as read: the name, and what the format says of the call besides."""

    name: str
    id: str | None = None
    arguments: str | None = None  # read already, where the call had to be read whole
    outer: str | None = None  # the mark that ends what was opened around the call, if anything


class Frame(msgspec.Struct, frozen=True):
    """What stands around calls.

    Calls are written `begin` ... `end`, those behind the first after `separator`. A section, in
    formats that have one, holds all calls of an answer.
    """

    begin: str
    end: str
    separator: str = ""
    section_begin: str = ""
    section_end: str = ""

    @property
    def trigger(self) -> str:
        """The text that surely begins calls; until then text is free."""
        return (self.section_begin or self.begin).strip()


class ToolFormat(ABC):
    """One model family's way of writing tool calls.

    `models` says which write so, for people. `stray` are markers that are tokens of their own
    and make no sense in free text: a grammar keeps them out of the text around calls.
    """

    def __init__(
        self, name: str, models: str, frame: Frame, stray: tuple[str, ...], think: tuple[str, str]
    ) -> None:
        self.name = name
        self.models = models
        self.frame = frame
        self.stray = stray
        self.think = think

    # grammar

    @abstractmethod
    def arguments_rule(
        self, grammar: Grammar, shape: Shape, definitions: Definitions, stem: str, note: Note
    ) -> str:
        """An expression for the arguments of one tool. Raises `Unwritable`."""

    @abstractmethod
    def around_arguments(self, name: str) -> tuple[str, str]:
        """Expressions for what stands between `frame.begin` and the arguments, and behind them."""

    # text

    @abstractmethod
    def render(self, name: str, arguments: Mapping[str, object], index: int) -> str:
        """A call as the model's own template writes it; `index` counts the calls before it.

        Raises `Unwritable` for arguments that the format cannot hold.
        """

    def replay(self, name: str, arguments: str, index: int) -> str:
        """An earlier call again, from the JSON text of its arguments.

        Formats that hold JSON keep that text as it is, so that an engine finds the tokens in
        its cache. Raises `ValueError` for text that is no JSON object, and `Unwritable`.
        """
        return self.render(name, msgspec.json.decode(arguments, type=dict[str, Any]), index)

    def replay_all(self, calls: Sequence[tuple[str, str]]) -> str:
        """All calls of an earlier answer, with what stands around them."""
        frame = self.frame
        texts = [self.replay(name, arguments, i) for i, (name, arguments) in enumerate(calls)]
        return frame.section_begin + frame.separator.join(texts) + frame.section_end

    @property
    @abstractmethod
    def openers(self) -> Marks:
        """What may begin a call, or a section of calls."""

    @abstractmethod
    def open(
        self, reader: Reader, tools: ToolSet, *, known_only: bool, at_start: bool
    ) -> Steps[Opening | str]:
        """Reads the opening that stands here, or the text that only looked like one.

        `known_only`: only a call of a known tool is one. `at_start`: only whitespace came before.
        """

    @property
    @abstractmethod
    def ends(self) -> Marks:
        """What ends calls and what is around them; directly behind a call it is never text."""

    @abstractmethod
    def read(self, reader: Reader, sink: CallSink) -> Steps[None]:
        """Reads the rest of a call whose opening has been read, up to its end or past it."""

    def render_all(self, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
        """All calls of an answer, with what stands around them."""
        frame = self.frame
        texts = [self.render(name, arguments, i) for i, (name, arguments) in enumerate(calls)]
        return frame.section_begin + frame.separator.join(texts) + frame.section_end


@lru_cache(maxsize=1)
def load() -> dict[str, ToolFormat]:
    """All formats by name."""
    found = {}
    for module in sorted(pkgutil.iter_modules(formats.__path__), key=lambda one: one.name):
        loaded = importlib.import_module(f"{formats.__name__}.{module.name}")
        found[loaded.FORMAT.name] = loaded.FORMAT
    return found


def format_named(name: str) -> ToolFormat:
    """Raises `InvalidRequest` for a format that is not there."""
    known = load()
    if name not in known:
        hint = did_you_mean(name, known)
        raise InvalidRequest(f"no format {name[:64]!r}; there are {', '.join(known)}.{hint}")
    return known[name]
