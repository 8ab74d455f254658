"""One call while it is being read: its arguments as they come, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from prime_inference.toolcalls.events import ArgumentsPart, CallBegun, CallEnded, Event
from prime_inference.toolcalls.format import Opening
from prime_inference.toolcalls.reader import Marks, Reader, copy_until
from prime_inference.toolcalls.reader import Steps as Reading
from prime_inference.toolcalls.shapes import Steps
from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import Bucket, Problem

Check: TypeAlias = Callable[[str, Tool], tuple[Problem, ...]]

# How much of a piece of text that is no part of a call is quoted in the problem.
_QUOTED = 120


def judged_elsewhere(arguments: str, tool: Tool) -> tuple[Problem, ...]:
    """A `Check` that leaves arguments to somebody who can end the work."""
    return ()


class CallSink:
    """Collects one call and reports it piece by piece.

    `behind` is text that was read behind its arguments: none of it, where no mark ends the call.
    `followed`: another call stands right behind it, in the same tag.
    """

    __slots__ = (
        "_begun",
        "_check",
        "_emit",
        "_parts",
        "_problems",
        "behind",
        "followed",
        "given",
        "steps",
        "tool",
    )

    def __init__(
        self,
        emit: Callable[[Event], object],
        index: int,
        opening: Opening,
        tool: Tool | None,
        check: Check,
        steps: Steps,
    ) -> None:
        self.tool = tool
        self.steps = steps
        self.given = opening.arguments
        self.behind: list[str] = []
        self.followed = False
        self._emit = emit
        self._check = check
        self._begun = CallBegun(index, opening.name, opening.id)
        self._parts: list[str] = []
        self._problems: list[Problem] = []
        emit(self._begun)

    def write(self, text: str) -> None:
        """A piece of the arguments' JSON text."""
        self._parts.append(text)
        self._emit(ArgumentsPart(self._begun.index, text))

    def broken(self, message: str, text: str = "") -> None:
        """The call's text is not what the format asks for; `text` is what stood there."""
        quoted = f": {text[:_QUOTED]!r}" if text else ""
        self._problems.append(Problem(Bucket.INVALID_JSON, message + quoted))

    @property
    def is_broken(self) -> bool:
        """Whether anything was not what the format asks for."""
        return bool(self._problems)

    @property
    def is_empty(self) -> bool:
        """Whether no arguments have come."""
        return not any(self._parts)

    def cut_off(self) -> None:
        """The text ends inside the call."""
        self._problems.append(Problem(Bucket.INVALID_JSON, "the call was cut off"))
        begun = self._begun
        arguments = "".join(self._parts)
        self._emit(CallEnded(begun.index, begun.name, arguments, begun.id, tuple(self._problems)))

    def end(self) -> None:
        arguments = "".join(self._parts)
        begun = self._begun
        if self.tool is None:
            problem = Problem(Bucket.UNKNOWN_NAME, f"no tool is named {begun.name!r}")
            self._problems.insert(0, problem)
        else:
            self._problems += self._check(arguments, self.tool)
        self._emit(CallEnded(begun.index, begun.name, arguments, begun.id, tuple(self._problems)))


def read_behind(reader: Reader, stops: Marks, ends: Marks, sink: CallSink) -> Reading[None]:
    """Reads from the end of a call's JSON up to the mark that ends the call, one of `ends`.

    What stands before that mark is no part of any call, and no text. Where the text ends or
    another of the `stops` comes first, the model forgot the mark.
    """
    if (yield from copy_until(reader, stops, sink.behind.append)) in ends.marks:
        text = "".join(sink.behind).strip()
        sink.behind.clear()
        if text:
            sink.broken("text behind the arguments", text)
