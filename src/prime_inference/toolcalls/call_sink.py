"""One call while it is being read: its arguments as they come, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from prime_inference.toolcalls.events import ArgumentsPart, CallBegun, CallEnded, Event
from prime_inference.toolcalls.format import Opening
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
    """Collects one call and reports it piece by piece."""

    __slots__ = ("_begun", "_check", "_emit", "_parts", "_problems", "given", "steps", "tool")

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
