"""aiperf's multi-turn form: {"session_id", "turns": [{"text", "delay" | "timestamp": ms}]}.

The prompt of a turn is everything before it with the server's own answers, then its text.
Text only; a turn with images, audio or video is an error rather than a smaller request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prime_inference.bench.agents.traces.bounds import Milliseconds, Role, Tokens
from prime_inference.bench.agents.traces.errors import TraceError, decoded
from prime_inference.bench.agents.traces.mooncake import DEFAULT_OUTPUT
from prime_inference.bench.agents.workload import Session, Turn


class _TurnRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    text: str
    role: Role = "user"
    delay: Milliseconds | None = None
    timestamp: Milliseconds | None = None
    output_length: Tokens | None = None


class _SessionRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    turns: tuple[_TurnRow, ...]
    session_id: str | None = None


_decoder = msgspec.json.Decoder(_SessionRow)


def read_line(file: str, line: int, data: bytes) -> Session:
    """The session of one line. Raises TraceError."""
    row = decoded(_decoder, file, line, data)
    turns: list[Turn] = []
    system: list[dict[str, Any]] = []
    clock = 0.0
    for index, turn in enumerate(row.turns):
        if turn.role == "system" and not turns:
            system.append({"role": "system", "content": turn.text})
            continue
        if turn.output_length is not None and turn.output_length <= 0:
            raise TraceError(file, line, f"turns[{index}].output_length", "must be above 0")
        delay = _delay(turn, clock, first=not turns)
        clock = (turn.timestamp or 0.0) / 1000 if not turns else clock + delay
        turns.append(
            Turn(
                start=clock,
                delay=delay,
                input_tokens=0,
                output_tokens=turn.output_length or DEFAULT_OUTPUT,
                messages=(*system, {"role": turn.role, "content": turn.text}),
                threaded=True,
            )
        )
        system = []
    if not turns:
        raise TraceError(file, line, "turns", "must hold a turn that is not the system's")
    name = row.session_id or f"line-{line}"
    return Session(id=name, turns=tuple(turns), block_tokens=1)


def _delay(turn: _TurnRow, clock: float, *, first: bool) -> float:
    if turn.delay is not None:
        return turn.delay / 1000
    if turn.timestamp is not None and not first:
        return max(0.0, turn.timestamp / 1000 - clock)
    return 0.0
