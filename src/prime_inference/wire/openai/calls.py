"""The tool calls of one choice as OpenAI streams them, whatever an upstream made of them: pure.

A call opens with index, id, type and name, and goes on with pieces of its arguments; indices
are 0, 1, ... in the order of the openings; ids are never missing or the same; a call without
arguments has `{}`. What is missing is made, what comes twice is said once, but neither a name
nor an argument is ever guessed: a call that has no name gets the empty one.

Where one call ends and the next begins is told by index, id, name and the arguments' own end,
each of which some upstream gets wrong (docs/tool-calls.md, "Where a call begins").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from prime_inference.domain.errors import ToolCallBroken
from prime_inference.wire.openai.answers import FunctionDelta, Message, ToolCallDelta
from prime_inference.wire.openai.json_end import JsonEnd


class TextReader(Protocol):
    """Makes content, reasoning and calls of the raw text of one choice."""

    def feed(self, text: str) -> Message:
        """The delta that this piece of text makes certain."""
        ...

    def finish(self, *, cut: bool) -> Message:
        """The delta that the end of the text makes certain; `cut`: it was not the model's end."""
        ...

    @property
    def broken(self) -> Collection[int]:
        """Calls, by index, that the model did not write as its format has them."""
        ...

    @property
    def amid_call(self) -> bool:
        """Whether the text ends inside a call."""
        ...

    @property
    def amid_markup(self) -> bool:
        """Whether it ends inside a call, or what has begun as one."""
        ...


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a request says of the calls in its answer, and how they are found in it."""

    parallel: bool = True  # False: the first call is the only one
    only: str | None = None  # the function that the caller named
    new_reader: Callable[[], TextReader] | None = None  # None: the upstream finds them
    stops: bool = False  # the caller gave stop strings
    objects: bool = False  # a call whose arguments are no object cannot be told to the client
    none: bool = False  # the caller wants no call


ANY_CALLS = CallRules()
CALL_REASONS = frozenset({"stop", "tool_calls", "function_call"})  # of answers that came to an end


@dataclass(slots=True, eq=False)
class Call:
    """A call as far as it has come."""

    given_id: str | None
    dropped: bool
    name: str | None = None
    index: int | None = None  # ours, from its opening on
    parts: list[str] = field(default_factory=list)
    ids_vary: bool = False  # a piece that went on with it had another id
    bare: bool = False  # a piece that went on with it had no name
    named_again: bool = False  # its name came once more, without arguments
    cut: bool = False  # the length limit or a stop string of the caller's ended it
    broken: bool = False  # the model itself did not write it as its format has it
    _end: JsonEnd = field(default_factory=JsonEnd)

    @property
    def arguments(self) -> str:
        return "".join(self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether its arguments are a JSON document already."""
        return self._end.is_whole(self.parts)

    @property
    def is_begun(self) -> bool:
        """Whether its arguments are the beginning of a JSON document, and no more than that."""
        return self._end.is_begun(self.parts)

    def is_repeated_by(self, given_id: str | None, name: str | None, text: str) -> bool:
        """Whether a piece says only what was said: these arguments whole, once more."""
        if text[:1] != "{" or not self.is_whole or text != self.arguments:
            return False
        if name and (name != self.name or not given_id):
            return False  # with its name and no id, a call may well be made twice
        return given_id in ("", None, self.given_id)

    def is_followed_by(self, given_id: str | None, name: str | None, text: str) -> bool:
        """Whether a piece that came where this call stands begins another one."""
        if name and self.name and name != self.name:
            return True
        other_id = bool(given_id and self.given_id and given_id != self.given_id)
        if other_id and name and self.name and not self.ids_vary:
            return not self._is_amid(text)
        if not text.strip():  # the name once more, or its end once more: no call is made of it
            return False
        if name or self.named_again:
            return self.is_whole or (self.bare and not self._is_amid(text))
        return other_id and self.is_whole

    def goes_on(self, given_id: str | None, name: str | None, text: str) -> None:
        """Note how a piece that belongs to it was told."""
        self.given_id = self.given_id or given_id
        self.ids_vary |= bool(given_id) and given_id != self.given_id
        self.named_again = bool(name) and self.name is not None and not text.strip()
        self.bare |= self.name is not None and not name and bool(text.strip())
        self.parts.append(text)

    def _is_amid(self, text: str) -> bool:
        """Whether its arguments are in their middle, and `text` does not begin new ones."""
        return not self.is_whole and any(self.parts) and text.lstrip()[:1] not in ("", "{")


@dataclass(frozen=True, slots=True)
class ChoiceCalls:
    """What became of the calls of one choice."""

    reason: str  # the finish reason, as the client is given it
    calls: Sequence[Call] = ()
    stopped: bool = False  # a stop string of the caller's may have ended it
    unwanted: bool = False  # the upstream called where the caller wants no call


class CallRepair:
    """Takes an upstream's deltas of tool calls and returns those to send instead."""

    __slots__ = (
        "_by_index",
        "_id_prefix",
        "_ids",
        "_last",
        "_pending",
        "_rules",
        "calls",
        "unwanted",
    )

    def __init__(self, id_prefix: str, rules: CallRules = ANY_CALLS) -> None:
        self.calls: list[Call] = []  # opened, by our index
        self.unwanted = False  # a call came although the caller wants none
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

    def finish(
        self, *, cut: bool = False, amid_last: bool = False, broken: Collection[int] = ()
    ) -> list[ToolCallDelta]:
        """The deltas that complete the calls, once the answer has ended.

        `cut`: not by the model's own end; `amid_last`: surely inside the last call; `broken`: the
        indices of calls that must not look whole.
        """
        rest = [self._open(call, self._rules.only or "") for call in self._pending]
        self._pending.clear()
        for call in self.calls:
            last = call is self.calls[-1]
            call.cut = cut and (call.is_begun or (last and amid_last and not call.is_whole))
            call.broken = call.index in broken and not call.cut
            if not any(call.parts) and not call.cut:
                # Many clients take no text for no arguments; a bracket alone nobody does.
                text = "{" if call.broken else "{}"
                call.parts.append(text)
                rest.append(ToolCallDelta(call.index, function=FunctionDelta(arguments=text)))
        return rest

    def finish_reason(self, reason: str) -> str:
        """As OpenAI gives it: `tool_calls` where the model chose to call, `stop` where the
        caller named the function or a stop string cut a call, never `tool_calls` without one."""
        if reason not in CALL_REASONS:
            return reason
        if self._rules.only is not None or any(call.cut for call in self.calls):
            return "stop"
        return "tool_calls" if self.calls else "stop"

    def _take(self, piece: ToolCallDelta) -> ToolCallDelta | None:
        function = piece.function or FunctionDelta()
        text = function.arguments or ""
        known, name = self._where(piece, function.name), function.name
        if known is not None and known.is_repeated_by(piece.id, name, text):
            return None
        if known is None or known.is_followed_by(piece.id, name, text):
            if known is not None and known.named_again:
                name = name or known.name  # it was said a piece ago
            call = self._begin(piece.id)
            call.parts.append(text)
            if call.dropped:
                call.name = name
        else:
            call = known
            call.goes_on(piece.id, name, text)
        self._by_index[piece.index] = self._last = call
        if call.dropped:
            return None
        if call.index is not None:
            return (
                ToolCallDelta(call.index, function=FunctionDelta(arguments=text)) if text else None
            )
        if not name:
            return None
        self._pending.remove(call)
        return self._open(call, name)

    def _where(self, piece: ToolCallDelta, name: str | None) -> Call | None:
        """The call that stands where the piece came; None if none does."""
        known = self._last if piece.index is None else self._by_index.get(piece.index)
        last = self._last
        if (
            known is None
            and not name
            and last is not None
            and piece.id in ("", None, last.given_id)
        ):
            return last  # neither arguments nor an id that is known begin a call
        return known

    def _begin(self, given_id: str | None) -> Call:
        self.unwanted |= self._rules.none
        more = not self._rules.parallel and bool(self.calls or self._pending)
        dropped = more or self._rules.none
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


def require_objects(calls: Iterable[Call]) -> None:
    """Raises ToolCallBroken for a call, not cut, that is broken or has no object for arguments."""
    for call in calls:
        if call.broken:
            raise ToolCallBroken("The model did not write a call of a tool to its end.")
        if not call.cut and not is_object(call.arguments):
            raise ToolCallBroken("The model called a tool with arguments that are no JSON object.")


def is_object(text: str) -> bool:
    """Whether it is a JSON object; no text at all stands for an empty one."""
    if not text.strip():
        return True
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False
