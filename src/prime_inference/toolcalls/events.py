"""What a parser says about a stream of text, in the order in which it becomes certain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from prime_inference.toolcalls.validate import Problem


class Content(msgspec.Struct, frozen=True, gc=False):
    """A piece of what the model says to the user."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    """A piece of what the model thinks first."""

    text: str


class CallBegun(msgspec.Struct, frozen=True, gc=False):
    """A call whose name is known. `id` is the model's own, in formats that have one."""

    index: int
    name: str
    id: str | None


class ArgumentsPart(msgspec.Struct, frozen=True, gc=False):
    """A piece of the arguments' JSON text."""

    index: int
    text: str


class CallEnded(msgspec.Struct, frozen=True):
    """A call is complete, or will not become so; the problems are all there are."""

    index: int
    name: str
    arguments: str
    id: str | None
    problems: tuple[Problem, ...]


Event: TypeAlias = Content | Reasoning | CallBegun | ArgumentsPart | CallEnded


class Message(msgspec.Struct, frozen=True):
    """A whole answer. Content and reasoning are None where there is none."""

    content: str | None
    reasoning: str | None
    calls: tuple[CallEnded, ...]


def collect(events: Iterable[Event]) -> Message:
    """The message that a complete stream of events amounts to."""
    content: list[str] = []
    reasoning: list[str] = []
    calls: list[CallEnded] = []
    for event in events:
        match event:
            case Content():
                content.append(event.text)
            case Reasoning():
                reasoning.append(event.text)
            case CallEnded():
                calls.append(event)
            case _:
                pass
    return Message(
        content="".join(content) or None,
        reasoning="".join(reasoning) or None,
        calls=tuple(calls),
    )
