"""A workload made smaller, with its proportions kept."""

from __future__ import annotations

import msgspec

from prime_inference.bench.agents.workload import Session, Subagent, Turn, Workload


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on input tokens, output tokens and delays; bounds on contexts and delays.

    `output` None is the factor of the input. `idle` is the longest delay in seconds, after
    scaling; what comes after a longer one is moved forward in recorded time.
    """

    input: float = 1.0
    output: float | None = None
    time: float = 1.0
    max_context: int | None = None
    idle: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "time"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"a scale of {name} is above 0 and at most 1, not {value}")


class CannotScale(ValueError):
    """A trace of texts has no counts to make smaller; a block is no less than a token."""


def scaled(workload: Workload, scale: Scale) -> Workload:
    """`workload` at `scale`; blocks keep their ids and become shorter, in whole tokens.

    Raises CannotScale.
    """
    holds_text = any(t.messages for s in workload.sessions for p in s.tree() for t in p.turns)
    if holds_text and (scale.input != 1 or scale.max_context is not None):
        raise CannotScale(f"{workload.name} holds texts; only outputs and delays can be scaled")
    shortest = min((session.block_tokens for session in workload.sessions), default=1)
    if scale.input < 1 / shortest and not holds_text:
        raise CannotScale(
            f"a scale of {scale.input:g} makes a block of {shortest} tokens less than one;"
            f" the smallest is 1/{shortest} ({1 / shortest:g})"
        )
    sessions = [_session(session, scale) for session in workload.sessions]
    kept = tuple(session for session in sessions if session.turns)
    effective = {_factor(session, scale) for session in workload.sessions}
    notes = [f"input tokens times {factor:g}" for factor in sorted(effective) if factor != 1]
    if scale.max_context is not None:
        turns = sum(len(p.turns) for s in kept for p in s.tree())
        notes.append(
            f"contexts up to {scale.max_context} tokens: {turns} of {workload.turns} turns"
        )
    return msgspec.structs.replace(
        workload, sessions=kept, scale=max(effective, default=1.0),
        notes=(*workload.notes, *notes),
    )  # fmt: skip


def _factor(session: Session, scale: Scale) -> float:
    """The wanted factor, rounded so that a block is a whole number of tokens."""
    return max(1, round(session.block_tokens * scale.input)) / session.block_tokens


def _session(session: Session, scale: Scale) -> Session:
    factor = _factor(session, scale)
    turns: list[Turn] = []
    saved = 0.0
    for turn in session.turns:
        smaller = _turn(turn, factor, scale)
        saved += smaller.delay - _capped(smaller.delay, scale)
        smaller = msgspec.structs.replace(
            smaller, start=smaller.start - saved, delay=_capped(smaller.delay, scale)
        )
        longest = smaller.input_tokens + smaller.output_tokens
        if scale.max_context is not None and longest > scale.max_context:
            break
        turns.append(smaller)
    subagents = [
        Subagent(
            after_turn=s.after_turn,
            delay=_capped(s.delay * scale.time, scale),
            session=_session(s.session, scale),
        )
        for s in session.subagents
    ]
    return Session(
        id=session.id,
        turns=tuple(turns),
        block_tokens=round(session.block_tokens * factor),
        system_tokens=int(session.system_tokens * factor),
        subagents=tuple(subagents),
    )


def _turn(turn: Turn, factor: float, scale: Scale) -> Turn:
    output = factor if scale.output is None else scale.output
    return msgspec.structs.replace(
        turn,
        start=turn.start * scale.time,
        delay=turn.delay * scale.time,
        input_tokens=turn.input_tokens and max(1, int(turn.input_tokens * factor)),
        output_tokens=max(1, round(turn.output_tokens * output)),
    )


def _capped(delay: float, scale: Scale) -> float:
    return delay if scale.idle is None else min(delay, scale.idle)
