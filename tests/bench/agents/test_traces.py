"""Trace files of three forms, and lines that are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prime_inference.bench.agents.blocks import ids
from prime_inference.bench.agents.traces import TraceError, read_trace
from prime_inference.bench.agents.workload import Session


def call(t: float, tokens: int, out: int, blocks: list[int], **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": out, "hash_ids": blocks, **more}


def weka(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "a", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
            "system_tokens": 10, "tool_tokens": 20, "requests": list(requests), **more}  # fmt: skip


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return path


def only(path: Path) -> Session:
    (session,) = read_trace(path).sessions
    return session


def test_a_weka_delay_is_from_the_end_of_the_turn_before(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        weka(call(0, 100, 5, [0], api_time=4.0), call(10, 200, 6, [0, 1, 2], api_time=1.0)),
    )
    first, second = only(path).turns
    assert (first.delay, second.delay) == (0.0, 6.0)
    assert second.start == 10.0
    assert list(ids(second.blocks)) == [0, 1, 2]
    assert only(path).system_tokens == 30


def test_a_turn_waits_for_the_subagents_that_had_ended_when_it_began(tmp_path: Path) -> None:
    def agent(name: str, t: float, ms: int | None) -> dict[str, Any]:
        return {"t": t, "type": "subagent", "agent_id": name, "subagent_type": "Explore",
                "status": "completed", "models": ["m"], "duration_ms": ms,
                "requests": [call(t, 50, 2, [], api_time=1.0)]}  # fmt: skip

    session = only(written(tmp_path, weka(
        call(0, 100, 5, [0], api_time=1.0), agent("joined", 2, 6000),
        agent("background", 2, 60_000),
        call(9, 200, 6, [0, 1], api_time=1.0),
    )))  # fmt: skip
    assert session.turns[1].waits_for == (0,)
    assert session.turns[1].delay == 1.0  # from the subagent's end at 8 s
    assert [s.session.id for s in session.subagents] == ["a/joined", "a/background"]
    assert [(s.after_turn, s.delay) for s in session.subagents] == [(0, 1.0), (0, 1.0)]


def test_a_subagents_times_may_count_from_its_own_start(tmp_path: Path) -> None:
    agent = {"t": 100.0, "type": "subagent", "agent_id": "x", "subagent_type": "Explore",
             "status": "async_launched", "models": ["m"],
             "requests": [call(0, 50, 2, [], api_time=1.0), call(3, 60, 2, [])]}  # fmt: skip
    session = only(written(tmp_path, weka(call(0, 100, 5, [0], api_time=99.0), agent)))
    inner = session.subagents[0].session.turns
    assert [turn.start for turn in inner] == [100.0, 103.0]
    assert [turn.delay for turn in inner] == [0.0, 2.0]
    assert session.subagents[0].delay == 1.0


def test_mooncake_rows_are_sessions_by_id_and_share_blocks_in_the_file(tmp_path: Path) -> None:
    workload = read_trace(written(
        tmp_path,
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]},
        {"session_id": "s", "input_length": 513, "output_length": 1, "hash_ids": [7, 9]},
        {"session_id": "s", "input_length": 600, "output_length": 1, "hash_ids": [7, 9],
         "delay": 1500},
    ))  # fmt: skip
    assert workload.form == "mooncake"
    assert workload.scope == "workload"
    assert [len(s.turns) for s in workload.sessions] == [1, 2]
    assert workload.sessions[1].turns[1].delay == 1.5
    assert workload.sessions[0].block_tokens == 512


def test_mooncake_messages_are_kept_word_for_word(tmp_path: Path) -> None:
    row = {"session_id": "s", "messages": [{"role": "user", "content": "hi"}], "output_length": 3}
    (turn,) = only(written(tmp_path, row)).turns
    assert turn.messages == ({"role": "user", "content": "hi"},)
    assert turn.output_tokens == 3


def test_a_multi_turn_session_starts_with_its_system_text(tmp_path: Path) -> None:
    row = {"session_id": "s", "turns": [
        {"role": "system", "text": "be brief"}, {"text": "one"}, {"text": "two", "delay": 250},
    ]}  # fmt: skip
    first, second = only(written(tmp_path, row)).turns
    assert first.messages == (
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "one"},
    )  # fmt: skip
    assert second.messages == ({"role": "user", "content": "two"},)
    assert second.delay == 0.25


def test_a_file_may_be_one_object_over_many_lines(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(weka(call(0, 100, 5, [0])), indent=2))
    assert only(path).id == "a"


GOOD_WEKA = weka(call(0, 100, 5, [0]))
GOOD_ROW = {"input_length": 10, "output_length": 1}
BROKEN = {
    "a count that is text": (GOOD_WEKA, weka(call(0, 100, 5, [0]) | {"in": "x"}), "requests[0].in"),
    "a count that is negative": (GOOD_WEKA, weka(call(0, -1, 5, [])), "requests[0].in"),
    "a kind that is none": (GOOD_WEKA, weka({"t": 0, "type": "q"}), "requests[0].type"),
    "a scope that is not local": (GOOD_WEKA, weka(hash_id_scope="global"), "hash_id_scope"),
    "more blocks than tokens": (GOOD_WEKA, weka(call(0, 64, 5, [0, 1])), "requests[0].hash_ids"),
    "a block size of nothing": (GOOD_WEKA, weka(block_size=0), "block_size"),
    "no JSON": (GOOD_WEKA, '{"id": ', ""),
    "no input": (GOOD_ROW, {"output_length": 1}, "input_length"),
    "two inputs": (GOOD_ROW, {"input_length": 1, "text_input": "x"}, "input_length"),
    "a message without a role": (GOOD_ROW, {"messages": [{"content": ""}]}, "messages[0].role"),
    "no output": (GOOD_ROW, {"input_length": 1, "output_length": 0}, "output_length"),
    "a turn without text": ({"turns": [{"text": "x"}]}, {"turns": [{"delay": 1}]}, "turns[0]"),
    "a negative time": (GOOD_WEKA, weka(call(-1, 100, 5, [0])), "requests[0].t"),
    "a negative api_time": (
        GOOD_WEKA,
        weka(call(0, 100, 5, [0]) | {"api_time": -1}),
        "requests[0].api_time",
    ),
    "a negative block": (GOOD_WEKA, weka(call(0, 100, 5, [-1])), "requests[0].hash_ids[0]"),
    "a negative system prompt": (GOOD_WEKA, weka(system_tokens=-1), "system_tokens"),
    "a system prompt beyond any input": (
        GOOD_WEKA,
        weka(call(0, 100, 5, [0]), system_tokens=101),
        "system_tokens",
    ),
    "more tokens than any model": (GOOD_WEKA, weka(call(0, 10**30, 5, [])), "requests[0].in"),
    "a nest": (GOOD_WEKA, '{"totals": ' + '{"a": ' * 100_000 + "}" * 100_001, ""),
    "a negative delay": (GOOD_ROW, {"input_length": 1, "delay": -1}, "delay"),
    "a negative id": (GOOD_ROW, {"input_length": 1, "hash_ids": [-1]}, "hash_ids[0]"),
    "a role that is none": (
        GOOD_ROW,
        {"messages": [{"role": "wizard", "content": ""}]},
        "messages[0].role",
    ),
    "content of a wrong kind": (
        GOOD_ROW,
        {"messages": [{"role": "user", "content": 7}]},
        "messages[0].content",
    ),
    "no content": (GOOD_ROW, {"messages": [{"role": "user"}]}, "messages[0].content"),
    "a turn of no role": (
        {"turns": [{"text": "x"}]},
        {"turns": [{"text": "x", "role": "wizard"}]},
        "turns[0].role",
    ),
    "a turn before its time": (
        {"turns": [{"text": "x"}]},
        {"turns": [{"text": "x", "delay": -1}]},
        "turns[0].delay",
    ),
    "no turn": ({"turns": [{"text": "x"}]}, {"turns": []}, "turns"),
}


@pytest.mark.parametrize(("good", "bad", "field"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_line_names_its_line_and_field(
    tmp_path: Path, good: Any, bad: Any, field: str
) -> None:
    path = written(tmp_path, good, "", bad)
    with pytest.raises(TraceError) as raised:
        read_trace(path)
    assert (raised.value.line, raised.value.field) == (3, field)
    assert str(raised.value).startswith("trace.jsonl, line 3: ")


def test_a_file_of_no_known_form_says_which_fields_it_has(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"weka, mooncake, multi-turn .*\(prompt\)"):
        read_trace(written(tmp_path, {"prompt": 1}))


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="empty"):
        read_trace(written(tmp_path))
