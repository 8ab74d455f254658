"""Mooncake JSONL, as published with the FAST'25 traces and extended by aiperf.

    {"timestamp": ms, "input_length", "output_length", "hash_ids": [ids of 512-token blocks]}
    {"session_id", "messages", "output_length", "timestamp" | "delay": ms}

Ids mean the same block in the whole file. Rows with one `session_id` are one session, in
the file's order; a row without is a session of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from prime_inference.bench.agents.blocks import to_runs
from prime_inference.bench.agents.traces.bounds import (
    BlockId,
    Milliseconds,
    Tokens,
    check_message,
)
from prime_inference.bench.agents.traces.errors import TraceError, decoded
from prime_inference.bench.agents.workload import Session, Turn

BLOCK_TOKENS = 512  # the published traces'
DEFAULT_OUTPUT = 128  # of a row that says none; aiperf leaves it to the server


class _Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    timestamp: Milliseconds | None = None
    delay: Milliseconds | None = None
    input_length: Tokens | None = None
    output_length: Tokens | None = None
    hash_ids: tuple[BlockId, ...] = ()
    session_id: str | None = None
    text_input: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None


_decoder = msgspec.json.Decoder(_Row)


def read_lines(file: str, lines: Sequence[tuple[int, bytes]]) -> list[Session]:
    """All sessions of a file, in the order in which they begin. Raises TraceError."""
    groups: dict[str, list[tuple[int, _Row]]] = {}
    for number, data in lines:
        row = _row(file, number, data)
        groups.setdefault(row.session_id or f"row-{number}", []).append((number, row))
    return [_session(name, rows) for name, rows in groups.items()]


def _row(file: str, line: int, data: bytes) -> _Row:
    row = decoded(_decoder, file, line, data)
    given = [row.input_length is not None, row.text_input is not None, row.messages is not None]
    if sum(given) != 1:
        raise TraceError(
            file, line, "input_length", "exactly one of input_length, text_input, messages is due"
        )
    if row.input_length is not None and row.input_length <= 0:
        raise TraceError(file, line, "input_length", "must be above 0")
    if row.output_length is not None and row.output_length <= 0:
        raise TraceError(file, line, "output_length", "must be above 0")
    if row.messages is not None and not row.messages:
        raise TraceError(file, line, "messages", "must not be empty")
    for index, message in enumerate(row.messages or ()):
        check_message(message, file, line, f"messages[{index}]")
    if len(row.hash_ids) * BLOCK_TOKENS >= (row.input_length or 0) + BLOCK_TOKENS and row.hash_ids:
        raise TraceError(file, line, "hash_ids", "more blocks than input_length holds")
    return row


def _session(name: str, rows: Sequence[tuple[int, _Row]]) -> Session:
    turns: list[Turn] = []
    clock = (rows[0][1].timestamp or 0.0) / 1000
    for index, (_, row) in enumerate(rows):
        if row.delay is not None:
            delay = row.delay / 1000
        elif row.timestamp is not None and index:
            delay = max(0.0, row.timestamp / 1000 - clock)
        else:
            delay = 0.0
        clock += delay
        turns.append(
            Turn(
                start=clock,
                delay=delay,
                input_tokens=row.input_length or 0,
                output_tokens=row.output_length or DEFAULT_OUTPUT,
                blocks=to_runs(row.hash_ids),
                messages=_messages(row),
            )
        )
    return Session(id=name, turns=tuple(turns), block_tokens=BLOCK_TOKENS)


def _messages(row: _Row) -> tuple[dict[str, Any], ...] | None:
    if row.text_input is not None:
        return ({"role": "user", "content": row.text_input},)
    return row.messages
