"""What the mock engine answers, before it becomes JSON: choices made of units.

A unit is what one token brings: a piece of text, or a piece of a tool call.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from prime_inference.engines.mock.behaviour import PLAIN, Behaviour
from prime_inference.engines.mock.calls import with_wrong_arguments
from prime_inference.engines.mock.instance import minimal_instance
from prime_inference.engines.mock.request import ChatRequest, CompletionRequest, Tool
from prime_inference.engines.mock.text import (
    Prompt,
    answer_tokens,
    choice_seed,
    text_ids,
    tokens_after,
)

JSON_PIECE = re.compile(r".{1,4}", re.DOTALL)  # tokens of JSON: about as long as real ones


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call; the first one carries the id and the name."""

    call: int
    arguments: str
    id: str | None = None
    name: str | None = None


Unit = str | CallPiece


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer of a request."""

    units: Sequence[Unit]
    finish: str
    stop: str | None = None  # the stop string that ended it

    @property
    def text(self) -> str:
        return "".join(unit for unit in self.units if isinstance(unit, str))


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices of a request and what they cost."""

    choices: Sequence[Choice]
    prompts: Sequence[Prompt]

    @property
    def prompt_tokens(self) -> int:
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.units) for choice in self.choices)


def compose(
    request: ChatRequest | CompletionRequest,
    length: int,
    behaviour: Behaviour = PLAIN,
    said: str | None = None,
) -> Answer:
    """Everything a request is answered, `length` tokens long where nothing else decides.

    `said` is the text to say whatever is asked. Raises ValueError for a tool_choice that names
    no tool of the request.
    """
    if request.ignore_eos and request.limit is not None:
        length = max(length, request.limit + 1)  # goes on until the limit
    prompts = request.prompts()
    choices = [
        _choice(request, prompt, n, length, behaviour, said)
        for prompt in prompts
        for n in range(request.choices)
    ]
    return Answer(choices, prompts)


def _choice(
    request: ChatRequest | CompletionRequest,
    prompt: Prompt,
    n: int,
    length: int,
    behaviour: Behaviour,
    said: str | None,
) -> Choice:
    units: Sequence[Unit]
    finish, stop = "stop", None
    if said is not None:
        units, stop = cut_at_stop(JSON_PIECE.findall(said), request.stops)
    elif isinstance(request, ChatRequest) and (names := _forced_tools(request, behaviour.calls)):
        units = _call_units(request, names, choice_seed(prompt, n), behaviour)
        units, stop = calls_cut_at_stop(units, request.stops)
        # A named tool_choice ends with "stop" at OpenAI and vLLM alike.
        finish = "stop" if isinstance(request.tool_choice, Tool) else "tool_calls"
    elif (document := _json_document(request)) is not None:
        units = tokens_after(prompt.begun, JSON_PIECE.findall(document))
    else:
        units = answer_tokens(prompt, length, choice=n)
        units, stop = cut_at_stop(units, request.stops)
    if request.limit is not None and request.limit < len(units):
        return Choice(units[: request.limit], "length")
    return Choice(units, finish, stop)


def cut_at_stop(tokens: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    """The tokens up to the earliest stop string, which is left out, and that string."""
    text = "".join(tokens)
    found = [(text.index(stop), stop) for stop in stops if stop and stop in text]
    if not found:
        return list(tokens), None
    end, stop = min(found)
    kept: list[str] = []
    for token in tokens:
        kept.append(token[: end + len(stop)][:end])
        end -= len(token)
        if end <= 0:
            break
    return kept, stop


def calls_cut_at_stop(
    units: Sequence[Unit], stops: Sequence[str]
) -> tuple[Sequence[Unit], str | None]:
    """The pieces of calls up to the earliest stop string in their arguments, and that string."""
    arguments = [unit.arguments if isinstance(unit, CallPiece) else "" for unit in units]
    kept, stop = cut_at_stop(arguments, stops)
    if stop is None:
        return units, None
    cut = [
        replace(unit, arguments=text) if isinstance(unit, CallPiece) else unit
        for unit, text in zip(units, kept, strict=False)
    ]
    return cut, stop


def _forced_tools(request: ChatRequest, calls: int | None) -> list[str]:
    """Names of the tools to call, in order; empty: answer with text."""
    offered = [tool.function.name for tool in request.tools or ()]
    if isinstance(request.tool_choice, Tool):
        name = request.tool_choice.function.name
        if name not in offered:
            raise ValueError(f"tool_choice names {name!r}, which is not among the tools")
        return [name] * (calls or 1)
    if not offered or (calls is None and request.tool_choice != "required"):
        return []
    return [offered[i % len(offered)] for i in range(calls or 1)]


def _call_units(
    request: ChatRequest, names: Sequence[str], seed: int, behaviour: Behaviour
) -> list[Unit]:
    schemas = {tool.function.name: tool.function.parameters for tool in request.tools or ()}
    units: list[Unit] = []
    for call, name in enumerate(names):
        arguments = _encode(minimal_instance(schemas[name] or {"type": "object"}))
        arguments = with_wrong_arguments(arguments, behaviour)
        identity = f"call_{zlib.crc32(name.encode(), seed + call):08x}"
        said_name = f"no_{name}" if behaviour.unknown_names else name
        units.append(CallPiece(call, "", identity, said_name))
        pieces = [arguments] if behaviour.object_arguments else JSON_PIECE.findall(arguments)
        units += [CallPiece(call, piece) for piece in pieces]
    return units


def _json_document(request: ChatRequest | CompletionRequest) -> str | None:
    """The document that `response_format` asks for."""
    if not isinstance(request, ChatRequest) or request.response_format is None:
        return None
    match request.response_format.type:
        case "json_schema":
            return _encode(minimal_instance(request.response_format.json_schema.definition))
        case "json_object":
            return '{"answer":"word"}'
        case _:
            return None


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def unit_ids(unit: Unit) -> list[int]:
    """The token ids of a unit."""
    return text_ids(unit if isinstance(unit, str) else unit.name or unit.arguments)
