"""What a benchmark replays: sessions of turns, and the subagents they start."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from prime_inference.bench.agents.blocks import Runs, SeenBlocks
from prime_inference.bench.agents.percentiles import percentile

Scope = Literal["session", "workload"]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a session.

    `start` is its recorded time and `delay` what passed between the end of what it waited
    for and its start, both in seconds. `blocks` are the ids of the input's blocks, in order;
    tokens beyond the last block are shared with nothing. `waits_for` are indices of the
    session's subagents that must have ended. `messages` is text instead of counts
    (`input_tokens` is then 0): the whole prompt, or, if `threaded`, what follows the server's
    answer to the turn before.
    """

    start: float
    delay: float
    input_tokens: int
    output_tokens: int
    blocks: Runs = ()
    after_tool: bool = False
    waits_for: tuple[int, ...] = ()
    messages: tuple[dict[str, Any], ...] | None = None
    threaded: bool = False


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent asked, in order.

    Blocks are `block_tokens` long; the first `system_tokens` positions of every input are
    the system prompt and the tools.
    """

    id: str
    turns: tuple[Turn, ...]
    block_tokens: int
    system_tokens: int = 0
    subagents: tuple[Subagent, ...] = ()

    @property
    def seconds(self) -> float:
        """From the first turn's start to the last one's, as recorded."""
        return self.turns[-1].start - self.turns[0].start if self.turns else 0.0

    def tree(self) -> Iterator[Session]:
        """This session and every one below it."""
        yield self
        for subagent in self.subagents:
            yield from subagent.session.tree()


class Subagent(msgspec.Struct, frozen=True, kw_only=True):
    """A session that starts `delay` seconds after turn `after_turn` of its parent has ended.

    `after_turn` is -1 for one that starts with its parent.
    """

    after_turn: int
    delay: float
    session: Session


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions and where they come from.

    `scope` says how far a block id means the same block: within a session and its
    subagents, or in the whole workload. `sha256` is that of the bytes read, or of the
    generator's output.
    """

    name: str
    form: str
    sessions: tuple[Session, ...]
    sha256: str
    scope: Scope = "session"
    scale: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def turns(self) -> int:
        return sum(len(part.turns) for session in self.sessions for part in session.tree())


class Statistics(msgspec.Struct, frozen=True):
    """What a workload looks like, in the terms in which AgentX's corpus is published."""

    sessions: int
    requests: int
    median_input: float
    median_output: float
    median_new: float
    mean_new: float
    reusable: float
    sessions_with_subagents: float


def statistics(workload: Workload) -> Statistics:
    """Medians over requests; `reusable` is the share of input tokens that an unlimited cache
    would hold, `median_new` and `mean_new` are of what it would not."""
    inputs: list[float] = []
    outputs: list[float] = []
    new: list[float] = []
    for session in workload.sessions:
        for turn, hit in hits_in_order(session):
            inputs.append(turn.input_tokens)
            outputs.append(turn.output_tokens)
            new.append(turn.input_tokens - hit)
    total = sum(inputs)
    parents = sum(1 for session in workload.sessions if session.subagents)
    return Statistics(
        sessions=len(workload.sessions),
        requests=len(inputs),
        median_input=percentile(inputs, 50),
        median_output=percentile(outputs, 50),
        median_new=percentile(new, 50),
        mean_new=sum(new) / len(new) if new else 0.0,
        reusable=1 - sum(new) / total if total else 0.0,
        sessions_with_subagents=parents / len(workload.sessions) if workload.sessions else 0.0,
    )


def hits_in_order(session: Session) -> Iterator[tuple[Turn, int]]:
    """Every turn of a tree in recorded order, with the tokens that were sent before it."""
    seen = SeenBlocks()
    turns = [(turn, part.block_tokens) for part in session.tree() for turn in part.turns]
    for turn, block_tokens in sorted(turns, key=lambda pair: pair[0].start):
        yield turn, hit_tokens(turn, block_tokens, seen)
        seen.add(turn.blocks)


def hit_tokens(turn: Turn, block_tokens: int, seen: SeenBlocks) -> int:
    """Leading tokens of `turn` that its play has sent; at least one token is always new."""
    return max(0, min(seen.hit(turn.blocks) * block_tokens, turn.input_tokens - 1))


def digest(sessions: Sequence[Session]) -> str:
    """SHA-256 of sessions, for provenance."""
    return hashlib.sha256(msgspec.json.encode(sessions)).hexdigest()
