"""How the mock engine misbehaves, and when.

A behaviour is written as clauses joined by dots, in letters that a model name may hold:

    mock/cut-after-40                 as the model of a request
    x-mock-behaviour: status-429.retry-after-2.first-1        as a header
    MockEngine(behaviour="stall-after-10")                    for every request

Before an answer
    status-N            answer with this status and an error object
    retry-after-N       and this Retry-After header, in seconds
    context-length      400: the prompt is too long for the context window
    content-filter      400: the prompt was refused by a content filter
    refuse-prefill      400 if the last message is the assistant's
    reset               close with a TCP reset
    close               close without a word
    silence             never answer
    slow-head-T         send nothing for T
Pace
    slow-first-T        first token after T; the head of a stream goes out at once
    pace-T              this long between tokens
    answer-N            an answer of N tokens
In the answer, N counted in tokens
    cut-after-N         close the connection after N tokens, without a finish
    reset-after-N       the same with a TCP reset
    end-after-N         the same with a well-formed end of the HTTP body
    stall-after-N       fall silent after N tokens, for ever or for `stall-T`
    stall-T
    error-after-N       an error event in the stream instead of token N + 1
    malformed-at-N      token N comes as broken JSON
    huge-at-N           token N comes in an event of 2 MiB
    calls-N             N tool calls, whatever tool_choice says
    no-finish           no finish_reason
    no-usage            no usage
    no-done             no [DONE]; the connection stays open
    end-without-done    no [DONE]; the body ends well
    stop-reason         names the stop string that ended the answer, or null, as vLLM does
In tool calls
    finish-stop         finish_reason stop instead of tool_calls
    no-ids, same-ids    no id, or one id for all calls of an answer
    no-indices          no index on any piece
    same-indices        index 0 on every piece
    null-names          null instead of the name
    repeat-names        name and id on every piece
    object-arguments    an object where its JSON text should be, in one piece
    no-arguments        empty text instead of arguments
    broken-arguments    arguments without their last brace
    wrong-arguments     an array instead of an object
    unknown-names       names of functions that were not offered
As bytes
    crlf, cr            line ends of events
    comments            an SSE comment before every event
    chunks-N            HTTP chunks of N bytes (1: byte by byte)
    html                a page of HTML instead of the answer
    garbage             bytes that are no JSON instead of the answer
    not-http            bytes that are no HTTP
    length-plus-N       a Content-Length that is N too large
    length-minus-N      or N too small
    close-after         close the connection right after the answer, unannounced
When
    first-N             only the first N requests that ask for this behaviour
    every-N             only each N-th of them
    for-T               only for T from the first of them

T is written 250ms, 20s or 2m.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass

HUGE_EVENT_BYTES = 2 * 1024 * 1024  # twice the gateway's limit for one event

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}


class UnknownBehaviour(ValueError):
    """A clause that is not in the list above; the message names the nearest ones."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What is unusual about one answer; times in seconds. See the module for each field."""

    status: int | None = None
    retry_after: int | None = None
    context_length: bool = False
    content_filter: bool = False
    refuse_prefill: bool = False
    reset: bool = False
    close: bool = False
    silence: bool = False
    slow_head: float | None = None
    slow_first: float | None = None
    pace: float | None = None
    answer: int | None = None
    cut_after: int | None = None
    reset_after: int | None = None
    end_after: int | None = None
    stall_after: int | None = None
    stall: float | None = None
    error_after: int | None = None
    malformed_at: int | None = None
    huge_at: int | None = None
    calls: int | None = None
    no_finish: bool = False
    no_usage: bool = False
    no_done: bool = False
    end_without_done: bool = False
    stop_reason: bool = False
    finish_stop: bool = False
    no_ids: bool = False
    same_ids: bool = False
    no_indices: bool = False
    same_indices: bool = False
    null_names: bool = False
    repeat_names: bool = False
    object_arguments: bool = False
    no_arguments: bool = False
    broken_arguments: bool = False
    wrong_arguments: bool = False
    unknown_names: bool = False
    crlf: bool = False
    cr: bool = False
    comments: bool = False
    chunks: int | None = None
    html: bool = False
    garbage: bool = False
    not_http: bool = False
    length_plus: int | None = None
    length_minus: int | None = None
    close_after: bool = False
    first: int | None = None
    every: int | None = None
    for_: float | None = None

    @classmethod
    def parse(cls, text: str) -> Behaviour:
        """Read clauses. Raises UnknownBehaviour."""
        values: dict[str, object] = {}
        for clause in text.split("."):
            name, value = _read_clause(clause)
            values[name] = value
        return cls(**values)  # type: ignore[arg-type]  # _read_clause gives each field its type


PLAIN = Behaviour()


def _seconds(value: str) -> float:
    match = re.fullmatch(r"(\d+)(ms|s|m)", value)
    if match is None:
        raise UnknownBehaviour(f"{value!r} is no time; write 250ms, 20s or 2m")
    return int(match[1]) * UNITS[match[2]]


def _count(value: str) -> int:
    if not value.isdecimal():
        raise UnknownBehaviour(f"{value!r} is no count")
    return int(value)


def _readers() -> dict[str, tuple[str, Callable[[str], object] | None]]:
    kinds = {"bool": None, "int | None": _count, "float | None": _seconds}
    return {
        field.name.rstrip("_").replace("_", "-"): (field.name, kinds[str(field.type)])
        for field in dataclasses.fields(Behaviour)
    }


CLAUSES = _readers()


def _read_clause(clause: str) -> tuple[str, object]:
    flag = CLAUSES.get(clause)
    if flag is not None and flag[1] is None:
        return flag[0], True
    name, _, value = clause.rpartition("-")
    if name in CLAUSES:
        field, reader = CLAUSES[name]
        if reader is not None:
            return field, reader(value)
    near = difflib.get_close_matches(name or clause, CLAUSES, n=3, cutoff=0.3)
    raise UnknownBehaviour(f"no behaviour {clause!r}; nearest: {', '.join(near) or 'none'}")


SCENARIOS = {
    "s01": "status-429.retry-after-2.first-1",
    "s02": "status-429",
    "s03": "status-500.first-1",
    "s04": "status-503",
    "s05": "reset",
    "s06": "silence",
    "s07": "slow-first-20s",
    "s08": "cut-after-40.answer-60",
    "s09": "stall-after-20.stall-30s.answer-60",
    "s10": "malformed-at-10.answer-60",
    "s11": "no-done",
    "s12": "context-length",
    "s13": "content-filter",
    "s14": "refuse-prefill",
    "s15": "status-503.for-60s",
    "s16": "status-500",
}
"""The primary's faults in the scenarios of Failover Bench (2026-09-12), by their numbers.

S14's fault is the fallback's: the primary plays s08, the fallback s14. Each is a model of
the mock engine too: `mock/s08`.
"""


class Occasions:
    """Decides whether a behaviour with a condition applies to the next request."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def applies(self, spec: str, behaviour: Behaviour, now: float) -> bool:
        """Count one more request that asks for `spec` at `now` (seconds)."""
        if behaviour.first is behaviour.every is behaviour.for_ is None:
            return True
        asked = self._asked[spec] = self._asked.get(spec, 0) + 1
        since = self._since.setdefault(spec, now)
        if behaviour.first is not None and asked > behaviour.first:
            return False
        if behaviour.every is not None and asked % behaviour.every:
            return False
        return behaviour.for_ is None or now - since < behaviour.for_

    def forget(self) -> None:
        """Start counting anew."""
        self._asked.clear()
        self._since.clear()
