"""What the coordination scripts answer, read as if anybody might have written it.

A stored value that is garbage never gets here: the scripts take it as if it were not there.
What does come from a server that is not ours, or a message that somebody made up, is no
answer: every function raises CoordinationUnavailable for it, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from prime_inference.ports.coordination import (
    Beat,
    BlockGrant,
    BreakerReading,
    BreakerRecord,
    BreakerSnapshot,
    BreakerState,
    Cause,
    CoordinationUnavailable,
    ProbeGrant,
    Push,
    RequestAsk,
    RequestGrant,
)

EXACT = 2**53  # Lua counts in doubles: beyond it no number is one of ours
DIGITS = 17  # of EXACT, and a sign


def push(data: object) -> Push:
    """A message of the channel."""
    try:
        message = msgspec.json.decode(data) if isinstance(data, bytes | str) else None
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise _malformed(data) from error
    return Beat(message) if type(message) is int else record(message)


def block_grants(answer: object, asks: int) -> Sequence[BlockGrant]:
    """One a pool, in the order of the asks."""
    return [_block_grant(fields) for fields in _list(answer, asks)]


def _block_grant(answer: object) -> BlockGrant:
    epoch, granted, batch, holders, learning, recall, owed, safe, capacity, more_in_us = map(
        _number, _list(answer, 10)
    )
    return BlockGrant(
        epoch, granted, batch, holders, bool(learning), recall, owed, safe, capacity,
        more_in_us / 1e6,
    )  # fmt: skip


def reading(answer: object) -> BreakerReading:
    beat, *news = _list(answer)
    if not news:
        return BreakerReading(Beat(_number(beat)), None)
    version, *records = news
    snapshot = BreakerSnapshot(_number(version), tuple(record(fields) for fields in records))
    return BreakerReading(Beat(_number(beat)), snapshot)


def probe_grant(answer: object) -> ProbeGrant:
    granted, fields = _list(answer, 2)
    return ProbeGrant(bool(_number(granted)), record(fields))


def record(fields: object) -> BreakerRecord:
    deployment, state, epoch, remaining_us, cause, trips = _list(fields, 6)
    try:
        return BreakerRecord(
            _text(deployment),
            BreakerState(_text(state)),
            _number(epoch),
            _number(remaining_us) / 1e6,
            Cause(_text(cause)),
            _number(trips),
        )
    except ValueError as error:  # no state, or no cause
        raise _malformed(fields) from error


def request_grant(answer: object, ask: RequestAsk) -> RequestGrant:
    granted, *refusal = _list(answer)
    if _number(granted):
        return RequestGrant(True)
    place, first_ends_us = _list(refusal, 2)
    number = _number(place)
    if not 1 <= number <= len(ask.limits):
        raise _malformed(answer)
    return RequestGrant(False, ask.limits[number - 1].name, _number(first_ends_us) / 1e6)


def flag(answer: object) -> bool:
    """Of a list that begins with it, or by itself."""
    return bool(_number(answer[0] if isinstance(answer, list) and answer else answer))


def _list(value: object, length: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list) or not value or length not in (None, len(value)):
        raise _malformed(value)
    return value


def _number(value: object) -> int:
    """Whole; the scripts write large ones as text."""
    if isinstance(value, bytes):
        value = value.decode("ascii", "replace")
    if isinstance(value, str) and len(value) <= DIGITS:
        try:
            value = int(value)
        except ValueError as error:
            raise _malformed(value) from error
    if type(value) is not int or abs(value) > EXACT:
        raise _malformed(value)
    return value


def _text(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise _malformed(value) from error
    if not isinstance(value, str):
        raise _malformed(value)
    return value


def _malformed(value: object) -> CoordinationUnavailable:
    return CoordinationUnavailable(f"the store's answer is none of ours: a {type(value).__name__}")
