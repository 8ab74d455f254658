"""The tool calls of one choice as OpenAI streams them, whatever an upstream made of them: pure.

A call opens with index, id, type and name, and goes on with pieces of its arguments; indices
are 0, 1, ... in the order of the openings; ids are never missing or the same; a call without
arguments has `{}`. What is missing is made, what comes twice is said once, but neither a name
nor an argument is ever guessed: a call that has no name gets the empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from prime_inference.wire.openai.answers import FunctionDelta, Message, ToolCallDelta


class TextReader(Protocol):
    """Makes content, reasoning and calls of the raw text of one choice."""

    def feed(self, text: str) -> Message:
        """The delta that this piece of text makes certain."""
        ...

    def finish(self) -> Message:
        """The delta that the end of the text makes certain."""
        ...


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a request says of the calls in its answer, and how they are found in it."""

    parallel: bool = True  # False: the first call is the only one
    only: str | None = None  # the function that the caller named
    new_reader: Callable[[], TextReader] | None = None  # None: the upstream finds them


ANY_CALLS = CallRules()


@dataclass(slots=True, eq=False)
class Call:
    """A call as far as it has come."""

    given_id: str | None
    dropped: bool
    name: str | None = None
    index: int | None = None  # ours, from its opening on
    parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a JSON document already."""
        if not self.parts or not self.parts[-1].rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


class CallRepair:
    """Takes an upstream's deltas of tool calls and returns those to send instead."""

    __slots__ = ("_by_index", "_id_prefix", "_ids", "_last", "_pending", "_rules", "calls")

    def __init__(self, id_prefix: str, rules: CallRules = ANY_CALLS) -> None:
        self.calls: list[Call] = []  # opened, by our index
        self._id_prefix = id_prefix
        self._rules = rules
        self._ids: set[str] = set()
        self._by_index: dict[int | None, Call] = {}  # by the upstream's index
        self._last: Call | None = None
        self._pending: list[Call] = []  # without a name so far

    def repair(self, pieces: Sequence[ToolCallDelta]) -> list[ToolCallDelta]:
        """The deltas to send for these."""
        found = (self._take(piece) for piece in pieces)
        return [piece for piece in found if piece is not None]

    def finish(self) -> list[ToolCallDelta]:
        """The deltas that complete the calls, once the answer has ended."""
        rest = [self._open(call, self._rules.only or "") for call in self._pending]
        self._pending.clear()
        for call in self.calls:
            if not any(call.parts):
                call.parts.append("{}")
                rest.append(ToolCallDelta(call.index, function=FunctionDelta(arguments="{}")))
        return rest

    def finish_reason(self, reason: str) -> str:
        """As OpenAI gives it: `tool_calls` where the model chose to call, `stop` where the
        caller named the function, never `tool_calls` without a call."""
        if reason not in ("stop", "tool_calls", "function_call"):
            return reason
        return "tool_calls" if self.calls and self._rules.only is None else "stop"

    def _take(self, piece: ToolCallDelta) -> ToolCallDelta | None:
        function = piece.function or FunctionDelta()
        text = function.arguments or ""
        call = self._call_of(piece, function.name, text)
        if call.dropped:
            return None
        call.parts.append(text)
        if call.index is not None:
            return (
                ToolCallDelta(call.index, function=FunctionDelta(arguments=text)) if text else None
            )
        if not function.name:
            return None
        self._pending.remove(call)
        return self._open(call, function.name)

    def _call_of(self, piece: ToolCallDelta, name: str | None, text: str) -> Call:
        """The call that a piece belongs to: indices of upstreams are wrong or missing at times."""
        known = self._last if piece.index is None else self._by_index.get(piece.index)
        if known is None and not piece.id and not name:
            known = self._last  # arguments alone begin no call
        if known is None or _is_another(known, piece.id, name, text):
            known = self._begin(piece.id)
        self._by_index[piece.index] = self._last = known
        return known

    def _begin(self, given_id: str | None) -> Call:
        dropped = not self._rules.parallel and bool(self.calls or self._pending)
        call = Call(given_id, dropped)
        if not dropped:
            self._pending.append(call)
        return call

    def _open(self, call: Call, name: str) -> ToolCallDelta:
        call.index = len(self.calls)
        self.calls.append(call)
        call.name = name
        identity = call.given_id
        if not identity or identity in self._ids:
            identity = f"call_{self._id_prefix}_{call.index}"
        self._ids.add(identity)
        return ToolCallDelta(call.index, identity, "function", FunctionDelta(name, call.arguments))


def _is_another(known: Call, given_id: str | None, name: str | None, text: str) -> bool:
    """Whether a piece that came where `known` stands begins another call."""
    if given_id and known.given_id and given_id != known.given_id:
        return bool(name) or known.is_whole  # some engines make up an id for every piece
    if not name or known.name is None or (given_id and given_id == known.given_id):
        return False
    return name != known.name or (bool(text) and known.is_whole)
