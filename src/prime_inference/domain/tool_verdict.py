"""What was found wrong with the tool calls of one answer."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ToolError = Literal["InvalidJson", "UnknownName", "SchemaMismatch"]
"""Arguments that are no JSON; a function that was not offered; arguments that the caller's
schema refuses. The buckets of OpenRouter's public tool-call error rate."""

TOOL_ERRORS: tuple[ToolError, ...] = ("InvalidJson", "UnknownName", "SchemaMismatch")


Cut = Literal["length", "stop"]
"""The length limit, or a stop string of the caller's."""


class ToolVerdict(Struct, frozen=True, gc=False):
    """One answer to a request with tools that had calls, or had to have some."""

    model: str
    deployment: str
    finished_with_calls: bool  # by its finish reason: those are what the public rate counts
    errors: tuple[ToolError, ...] = ()  # each once, whatever number of calls has it
    missing: bool = False  # a call was required, and none came
    judged: bool = True  # False: the schema was too much work, which counts as no error
    cut: Cut | None = None  # what ended a call that is no fault of the model's
    only_cut: bool = False  # there was no other call to judge
    unwanted: bool = False  # the upstream called where the caller wanted no call; none was given
    caller: int = 0  # whose tools they were, to tell callers apart within one process
