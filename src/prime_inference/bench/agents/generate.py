"""Sessions made up with the published statistics of AgentX's corpus.

Published of cc-traces-weka-062126 (393 sessions, 98,827 requests, 21.6e9 input tokens): the
median request has 142,016 tokens in and 444 out, 98.3 % of the input could be cached, 44 %
of the sessions have subagents. The project's source speaks of about 6,000 new tokens a turn;
the corpus' means give 3,700 (1.7 % of 218,600). The parameters below were fitted so that a
workload of 393 sessions meets medians, reuse and subagents; tests/bench/agents holds them to it.
What is published nowhere is marked as assumed.
"""

from __future__ import annotations

import math
import random

import msgspec

from prime_inference.bench.agents.blocks import Runs
from prime_inference.bench.agents.workload import Session, Subagent, Turn, Workload, digest


class LogNormal(msgspec.Struct, frozen=True):
    """A log-normal distribution, cut off at both ends."""

    median: float
    sigma: float
    low: float
    high: float

    def draw(self, rng: random.Random) -> float:
        value = self.median * math.exp(self.sigma * rng.gauss(0.0, 1.0))
        return min(self.high, max(self.low, value))


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Distributions of everything that is drawn. Tokens and seconds."""

    block_tokens: int = 64  # the corpus'
    system: LogNormal = LogNormal(22_000, 0.25, 8_000, 60_000)  # assumed: a coding agent's tools
    turns: LogNormal = LogNormal(64, 0.75, 2, 600)  # fitted to the median input
    new: LogNormal = LogNormal(1_750, 1.0, 64, 120_000)  # fitted to 98 % of reuse
    output: LogNormal = LogNormal(444, 1.0, 8, 16_000)  # median published, spread assumed
    tool: LogNormal = LogNormal(2.0, 1.3, 0.05, 600.0)  # seconds; assumed
    think: LogNormal = LogNormal(45.0, 1.0, 2.0, 3_600.0)  # seconds; assumed
    user_share: float = 0.08  # turns that follow a person rather than a tool; assumed
    context: int = 1_000_000  # the longest context of the corpus' models
    with_subagents: float = 0.44  # published
    subagents: LogNormal = LogNormal(3, 0.7, 1, 12)  # assumed
    subagent_system: LogNormal = LogNormal(12_000, 0.3, 4_000, 40_000)  # assumed
    subagent_turns: LogNormal = LogNormal(9, 0.7, 1, 60)  # assumed
    background_share: float = 0.2  # subagents that the parent does not wait for; assumed
    prefill_rate: float = 40_000.0  # uncached tokens/s in recorded times; assumed
    decode_rate: float = 60.0  # output tokens/s in recorded times; assumed


def generate(sessions: int, seed: int, shape: Shape | None = None) -> Workload:
    """A workload of `sessions` sessions; the same arguments give the same workload."""
    if sessions < 1:
        raise ValueError("a workload has at least one session")
    shape = shape or Shape()
    made = tuple(_tree(f"gen-{seed}-{n}", shape, _rng(seed, n)) for n in range(sessions))
    return Workload(
        name=f"generated-{sessions}-seed-{seed}",
        form="generated",
        sessions=made,
        sha256=digest(made),
        notes=("generated; statistics of cc-traces-weka-062126",),
    )


def _rng(seed: int, n: int) -> random.Random:
    return random.Random(f"agent-session {seed} {n}")


class _Blocks:
    """Hands out block ids of one tree."""

    def __init__(self, block_tokens: int) -> None:
        self._next = 0
        self.block_tokens = block_tokens

    def grow(self, runs: Runs, tokens: int) -> Runs:
        """`runs` with new ids behind them, up to the last full block of `tokens`."""
        have = sum(count for _, count in runs)
        more = tokens // self.block_tokens - have
        if more <= 0:
            return runs
        first, self._next = self._next, self._next + more
        if runs and sum(runs[-1]) == first:
            return (*runs[:-1], (runs[-1][0], runs[-1][1] + more))
        return (*runs, (first, more))


def _tree(name: str, shape: Shape, rng: random.Random) -> Session:
    blocks = _Blocks(shape.block_tokens)
    system = round(shape.system.draw(rng))
    count = round(shape.turns.draw(rng))
    turns = _turns(shape, rng, blocks, system, count, begin=0.0)
    subagents: list[Subagent] = []
    if rng.random() < shape.with_subagents and len(turns) > 1:
        branches = round(shape.subagents.draw(rng))
        for n, after in enumerate(sorted(rng.randrange(len(turns) - 1) for _ in range(branches))):
            _attach(f"{name}/agent-{n}", shape, rng, blocks, turns, subagents, after)
    return Session(
        id=name,
        turns=tuple(turns),
        block_tokens=shape.block_tokens,
        system_tokens=system,
        subagents=tuple(subagents),
    )


def _attach(
    name: str, shape: Shape, rng: random.Random, blocks: _Blocks,
    turns: list[Turn], subagents: list[Subagent], after: int,
) -> None:  # fmt: skip
    """A subagent that starts when turn `after` ends; the next turn waits for it, as a rule.

    A turn that waits is moved in recorded time, with all that follow it.
    """
    system = round(shape.subagent_system.draw(rng))
    began = turns[after].start + _api_seconds(shape, turns[after], 0)
    inner = _turns(shape, rng, blocks, system, round(shape.subagent_turns.draw(rng)), begin=began)
    session = Session(
        id=name, turns=tuple(inner), block_tokens=shape.block_tokens, system_tokens=system
    )
    subagents.append(Subagent(after_turn=after, delay=0.0, session=session))
    if rng.random() < shape.background_share:
        return
    waiting = turns[after + 1]
    shift = max(0.0, inner[-1].start + _api_seconds(shape, inner[-1], 0) - waiting.start)
    joined = (*waiting.waits_for, len(subagents) - 1)
    turns[after + 1] = msgspec.structs.replace(waiting, waits_for=joined)
    for k in range(after + 1, len(turns)):
        turns[k] = msgspec.structs.replace(turns[k], start=turns[k].start + shift)


def _turns(
    shape: Shape, rng: random.Random, blocks: _Blocks, system: int, count: int, *, begin: float
) -> list[Turn]:
    turns: list[Turn] = []
    runs: Runs = ()
    tokens, clock, delay, tool = system + round(shape.new.draw(rng)), begin, 0.0, False
    for _ in range(max(1, count)):
        output = round(shape.output.draw(rng))
        if tokens + output > shape.context:
            break
        before = runs
        runs = blocks.grow(runs, tokens)
        clock += delay
        turn = Turn(
            start=clock, delay=delay, input_tokens=tokens, output_tokens=output, blocks=runs,
            after_tool=tool,
        )  # fmt: skip
        turns.append(turn)
        cached = sum(n for _, n in before) * shape.block_tokens
        clock += _api_seconds(shape, turn, cached)
        tool = rng.random() >= shape.user_share
        delay = (shape.tool if tool else shape.think).draw(rng)
        tokens += output + round(shape.new.draw(rng))
    return turns


def _api_seconds(shape: Shape, turn: Turn, cached: int) -> float:
    """How long the recorded server took; it shapes open-loop schedules only."""
    fresh = turn.input_tokens - cached if cached else 0
    return fresh / shape.prefill_rate + turn.output_tokens / shape.decode_rate
