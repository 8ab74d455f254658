"""The form of AgentX's corpus, "weka": one JSON object per session.

    {"id", "models", "block_size", "hash_id_scope": "local", "tool_tokens", "system_tokens",
     "requests": [{"t", "type": "n" | "s", "model", "in", "out", "hash_ids", "stop",
                   "api_time", ...}
                  | {"t", "type": "subagent", "agent_id", "duration_ms", "requests": [...]}]}

Times are seconds. Read from datasets semianalysisai/cc-traces-weka-* and from the reader of
aiperf 0.13, which forbids unknown fields as this one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from prime_inference.bench.agents.blocks import to_runs
from prime_inference.bench.agents.traces.bounds import BlockId, Milliseconds, Seconds, Tokens
from prime_inference.bench.agents.traces.errors import TraceError, decoded
from prime_inference.bench.agents.workload import Session, Subagent, Turn


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    t: Seconds
    model: str
    input_length: Tokens = msgspec.field(name="in")
    output_length: Tokens = msgspec.field(name="out")
    hash_ids: tuple[BlockId, ...] = ()
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    stop: str = ""
    api_time: Seconds | None = None
    think_time: float | None = None
    ttft: float | None = None

    @property
    def end(self) -> float:
        return self.t + (self.api_time or 0.0)


class _Normal(_Call, frozen=True, tag_field="type", tag="n"):
    pass


class _Streaming(_Call, frozen=True, tag_field="type", tag="s"):
    pass


class _Subagent(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True,
    tag_field="type", tag="subagent",
):  # fmt: skip
    t: Seconds
    agent_id: str
    subagent_type: str
    status: str
    models: tuple[str, ...]
    requests: tuple[_Normal | _Streaming, ...]
    duration_ms: Milliseconds | None = None
    total_tokens: int | None = None
    tool_use_count: int | None = None
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0

    @property
    def offset(self) -> float:
        """What to add to the times of its requests, which may count from its own start."""
        return self.t if self.requests and self.requests[0].t < self.t else 0.0

    @property
    def end(self) -> float:
        if self.duration_ms is not None:
            return self.t + self.duration_ms / 1000
        return max((call.end + self.offset for call in self.requests), default=self.t)


class WekaTrace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One line, as it stands."""

    id: str
    models: tuple[str, ...]
    block_size: Tokens
    hash_id_scope: Literal["local"]
    requests: tuple[_Normal | _Streaming | _Subagent, ...]
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0
    totals: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(WekaTrace)


def read_line(file: str, line: int, data: bytes) -> Session | None:
    """The session of one line; None for one without requests. Raises TraceError."""
    trace = decoded(_decoder, file, line, data)
    _require(trace.block_size > 0, file, line, "block_size", "must be above 0")
    for index, request in enumerate(trace.requests):
        _check(request, file, line, f"requests[{index}]", trace.block_size)
    _check_system(trace, trace.requests, file, line, "")
    return _session(trace)


def _check_system(
    owner: WekaTrace | _Subagent, requests: Sequence[_Call | _Subagent], file: str, line: int,
    path: str,
) -> None:  # fmt: skip
    """A system prompt that no request of its session could hold. Small side calls may be
    shorter than it."""
    longest = max((r.input_length for r in requests if isinstance(r, _Call)), default=None)
    system = owner.system_tokens + owner.tool_tokens
    possible = longest is None or system <= longest
    _require(possible, file, line, f"{path}system_tokens",
             f"{system} with the tools' are more than any request's in")  # fmt: skip


def _check(request: _Call | _Subagent, file: str, line: int, path: str, block_size: int) -> None:
    if isinstance(request, _Subagent):
        for index, call in enumerate(request.requests):
            _check(call, file, line, f"{path}.requests[{index}]", block_size)
        _check_system(request, request.requests, file, line, f"{path}.")
        return
    _require(request.input_length > 0, file, line, f"{path}.in", "must be above 0")
    _require(request.output_length >= 0, file, line, f"{path}.out", "must not be negative")
    covered = len(request.hash_ids) * block_size
    possible = not request.hash_ids or covered < request.input_length + block_size
    _require(possible, file, line, f"{path}.hash_ids",
             f"{len(request.hash_ids)} blocks of {block_size} are more than"
             f" {request.input_length} tokens")  # fmt: skip


def _require(holds: bool, file: str, line: int, field: str, problem: str) -> None:
    if not holds:
        raise TraceError(file, line, field, problem)


def _session(trace: WekaTrace) -> Session | None:
    """Turns wait for the turn before and for the subagents that had ended when they began."""
    calls = sorted(
        (r for r in trace.requests if not isinstance(r, _Subagent)), key=lambda call: call.t
    )
    branches = [r for r in trace.requests if isinstance(r, _Subagent) and r.requests]
    if not calls:
        return None
    turns: list[Turn] = []
    waited: set[int] = set()
    for index, call in enumerate(calls):
        ended = [
            n for n, b in enumerate(branches)
            if index and n not in waited and b.t < call.t and b.end <= call.t
        ]  # fmt: skip
        waited.update(ended)
        before = max([calls[index - 1].end if index else call.t, *(branches[n].end for n in ended)])
        turns.append(_turn(call, before, waits_for=tuple(ended)))
    return Session(
        id=trace.id,
        turns=tuple(turns),
        block_tokens=trace.block_size,
        system_tokens=trace.system_tokens + trace.tool_tokens,
        subagents=tuple(_branch(trace, branch, calls) for branch in branches),
    )


def _branch(trace: WekaTrace, branch: _Subagent, parents: list[_Normal | _Streaming]) -> Subagent:
    after = max((n for n, call in enumerate(parents) if call.t <= branch.t), default=-1)
    began = parents[after].end if after >= 0 else parents[0].t
    inner = sorted(branch.requests, key=lambda call: call.t)
    first = inner[0].t + branch.offset
    ends = [first, *(call.end + branch.offset for call in inner)]
    session = Session(
        id=f"{trace.id}/{branch.agent_id}",
        turns=tuple(_turn(c, ends[n], offset=branch.offset) for n, c in enumerate(inner)),
        block_tokens=trace.block_size,
        system_tokens=branch.system_tokens + branch.tool_tokens,
    )
    return Subagent(after_turn=after, delay=max(0.0, first - began), session=session)


def _turn(
    call: _Call, before: float, *, waits_for: tuple[int, ...] = (), offset: float = 0.0
) -> Turn:
    start = call.t + offset
    return Turn(
        start=start,
        delay=max(0.0, start - before),
        input_tokens=call.input_length,
        output_tokens=max(1, call.output_length),
        blocks=to_runs(call.hash_ids),
        after_tool="tool_result" in call.input_types,
        waits_for=waits_for,
    )
