"""Points run against a mock engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_inference.bench.agents.blocks import to_runs
from prime_inference.bench.agents.http_stream import Address, StreamClient
from prime_inference.bench.agents.plan import Options, Point
from prime_inference.bench.agents.point import Measurement, PointRun
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.tool_calls import Tools
from prime_inference.bench.agents.vocabulary import CANDIDATES, Vocabulary
from prime_inference.bench.agents.workload import Session, Subagent, Turn, Workload
from prime_inference.engines.mock import MockEngine

MOCK = Vocabulary(words=CANDIDATES[:64], first_user=2, system=1, exchange=2)
"""The mock engine's costs: a mark for each message, and one for the answer."""

NO_LIMIT = 10.0  # seconds of lag that a test's shared machine may have


def session(
    name: str = "s", turns: int = 3, *, delay: float = 0.0, output: int = 4,
    subagents: Sequence[Subagent] = (), waits: dict[int, tuple[int, ...]] | None = None,
    start: float = 0.0,
) -> Session:  # fmt: skip
    """Turns of 40, 60, 80 ... tokens in blocks of 4."""
    return Session(
        id=name, block_tokens=4, system_tokens=8, subagents=tuple(subagents),
        turns=tuple(
            Turn(start=start + n * (delay or 0.001), delay=delay if n else 0.0,
                 input_tokens=40 + 20 * n, output_tokens=output,
                 blocks=to_runs(range(10 + 5 * n)), waits_for=(waits or {}).get(n, ()))
            for n in range(turns)
        ),
    )  # fmt: skip


def workload(*sessions: Session, **more: Any) -> Workload:
    return Workload(name="w", form="weka", sessions=sessions, sha256="", **more)


async def measured(
    engine: MockEngine, work: Workload, point: Point, *, model: str = "mock/plain",
    tools: Tools | None = None, vocabulary: Vocabulary | None = MOCK, nonce: str = "n",
    **options: Any,
) -> tuple[list[Record], PointRun]:  # fmt: skip
    """Records in the order in which they ended; the whole session is played unless told."""
    defaults: dict[str, Any] = {"seconds": 0.5, "start_window": (0.0, 0.0), "warmup_requests": 0,
                                "grace": 5.0, "lag_bound": NO_LIMIT}  # fmt: skip
    client = StreamClient(Address.parse(engine.base_url))
    records: list[Record] = []
    measurement = Measurement(
        client,
        model,
        work,
        Options(**(defaults | options)),
        vocabulary=vocabulary,
        tools=tools,
        nonce=nonce,
    )
    try:
        run = await measurement.run(point, 0, records.append)
    finally:
        client.close()
    return records, run
