"""Workloads as files that other harnesses read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prime_inference.bench.agents.blocks import ids
from prime_inference.bench.agents.prompts import PromptText, cache_marker, layouts
from prime_inference.bench.agents.vocabulary import Vocabulary
from prime_inference.bench.agents.workload import Session, Turn, Workload


def weka_objects(workload: Workload) -> Iterator[dict[str, Any]]:
    """One object a session, in AgentX's form; its times make the delays again."""
    for session in workload.sessions:
        requests = [_call(turn, _end(session, n)) for n, turn in enumerate(session.turns)]
        for subagent in session.subagents:
            inner = subagent.session
            requests.append({
                "t": inner.turns[0].start, "type": "subagent", "agent_id": inner.id.rsplit("/")[-1],
                "subagent_type": "generated", "status": "completed", "models": ["generated"],
                "system_tokens": inner.system_tokens,
                "requests": [_call(turn, _end(inner, n)) for n, turn in enumerate(inner.turns)],
            })  # fmt: skip
        yield {
            "id": session.id, "models": ["generated"], "block_size": session.block_tokens,
            "hash_id_scope": "local", "system_tokens": session.system_tokens,
            **({} if workload.scale == 1 else {"totals": {"input_scale": workload.scale}}),
            "requests": sorted(requests, key=lambda request: float(request["t"])),
        }  # fmt: skip


def _end(session: Session, index: int) -> float:
    """When a turn must have ended for the next one's delay to be what it is."""
    turn = session.turns[index]
    if index + 1 == len(session.turns):
        return turn.start
    after = session.turns[index + 1]
    return turn.start if after.waits_for else max(turn.start, after.start - after.delay)


def _call(turn: Turn, end: float) -> dict[str, Any]:
    return {
        "t": turn.start, "type": "s", "model": "generated", "in": turn.input_tokens,
        "out": turn.output_tokens, "hash_ids": list(ids(turn.blocks)),
        "input_types": ["tool_result" if turn.after_tool else "text"], "api_time": end - turn.start,
    }  # fmt: skip


def message_rows(workload: Workload, vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """One row a turn with its whole prompt, in Mooncake's form as aiperf reads it.

    The text is what a first play sends; subagents are sessions of their own.
    """
    for number, tree in enumerate(workload.sessions):
        text = PromptText(vocabulary, workload.name if workload.scope == "workload" else tree.id)
        marker = cache_marker(vocabulary.words, f"export {number}")
        for session in tree.tree():
            cuts = layouts(session, vocabulary)
            for index, turn in enumerate(session.turns):
                row = {
                    "session_id": session.id,
                    "messages": text.messages(session, index, cuts[index], marker),
                    "output_length": turn.output_tokens,
                }
                yield row | ({"delay": turn.delay * 1000} if index else {})
