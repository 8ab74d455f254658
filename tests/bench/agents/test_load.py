"""Lanes, open loops and cold arrivals against a mock engine."""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from prime_inference.bench.agents.cold import arrivals
from prime_inference.bench.agents.generate import LogNormal
from prime_inference.bench.agents.plan import Fault, Point
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.tool_calls import Tools
from prime_inference.bench.agents.workload import Subagent, Turn
from prime_inference.engines.mock import MockEngine

from .running import measured, session, workload

ONE_LANE = Point(sessions=1, cold_rate=0.0, seed=1)


def profiling(records: list[Record]) -> list[Record]:
    return [r for r in records if r.phase == "profiling"]


async def test_a_turn_starts_its_delay_after_the_turn_before_has_ended() -> None:
    async with MockEngine(pace=0.01) as engine:
        records, _ = await measured(engine, workload(session(delay=0.05)), ONE_LANE, seconds=1.0)
    own = [r for r in records if r.play == 0]
    assert [r.turn for r in own] == [0, 1, 2]
    for before, after in pairwise(own):
        assert after.due == pytest.approx(before.end + 0.05, abs=1e-5)
        assert after.sent >= after.due


async def test_a_drained_lane_takes_the_next_tree_from_its_first_turn() -> None:
    work = workload(session("a"), session("b"), session("c"))
    async with MockEngine(pace=0.002) as engine:
        records, _ = await measured(engine, work, ONE_LANE, seconds=1.0)
    plays = {r.play: r.session for r in records}
    assert len(set(list(plays.values())[:3])) == 3  # every tree before any comes again
    assert [r.turn for r in records if r.play == 1] == [0, 1, 2]


async def test_the_server_counts_what_the_trace_says_and_prompts_share_what_they_should() -> None:
    async with MockEngine() as engine:
        records, _ = await measured(engine, workload(session()), ONE_LANE, seconds=1.0)
    first = [r for r in records if r.play == 0]
    assert [(r.prompt_tokens, r.hit_tokens) for r in first] == [(40, 0), (60, 40), (80, 60)]
    assert not any(r.prompt_mismatch or r.usage_doubtful for r in records)
    assert {r.completion_tokens for r in first} == {4}


async def test_subagents_run_beside_their_parent_which_waits_for_those_it_waited_for() -> None:
    branches = [
        Subagent(after_turn=0, delay=0.02, session=session("s/joined", 2, delay=0.02)),
        Subagent(after_turn=0, delay=0.0, session=session("s/free", 1, output=60)),
    ]
    tree = session(subagents=branches, waits={1: (0,)})
    async with MockEngine(pace=0.005) as engine:
        records, _ = await measured(engine, workload(tree), ONE_LANE, seconds=1.0)
    ends = {(r.session, r.turn): r for r in records if r.play == 0}
    assert ends["s", 1].due >= ends["s/joined", 1].end
    assert ends["s", 1].sent < ends["s/free", 0].end
    assert ends["s/joined", 0].due == pytest.approx(ends["s", 0].end + 0.02, abs=1e-5)
    assert ends["s/free", 0].kind == "subagent"
    after = min(r.sent for r in records if r.play == 1)
    assert after >= ends["s/free", 0].end  # a lane is a tree, not a session


async def test_warm_up_sends_the_turn_before_and_the_extra_ones_with_a_token_each() -> None:
    async with MockEngine() as engine:
        records, run = await measured(
            engine, workload(session(turns=10, delay=0.001)), Point(2, 0.0, 3),
            start_window=(0.5, 0.5), warmup_requests=2, seconds=1.0,
        )  # fmt: skip
    warm = [r for r in records if r.phase == "warmup"]
    assert {(r.play, r.turn) for r in warm} == {(p, t) for p in (0, 1) for t in (4, 5, 6)}
    assert {r.asked_tokens for r in warm} == {1}
    assert all(r.end <= run.start for r in warm)
    firsts = [min(r.turn for r in profiling(records) if r.play == p) for p in (0, 1)]
    assert firsts == [7, 7]
    assert all(r.sent >= run.start for r in profiling(records))


async def test_cold_arrivals_come_at_their_times_whatever_the_server_does() -> None:
    async with MockEngine(first_token=2.0) as engine:
        records, _ = await measured(
            engine, workload(session()), Point(0, 100.0, 5), seconds=0.2,
            cold_input=LogNormal(50, 0.5, 20, 200), cold_output=LogNormal(5, 0.5, 1, 10),
        )  # fmt: skip
        prompts = len(engine.requests)
    assert prompts == len(records)
    assert {r.kind for r in records} == {"cold"}
    assert len(records) > 5
    assert max(r.sent for r in records) < min(r.end for r in records)
    assert all(r.prompt_tokens == r.input_tokens for r in records)


def test_poisson_arrivals_have_their_rate_and_bursts_their_size() -> None:
    times = list(arrivals(50.0, 1, 100.0, random.Random(1)))
    assert len(times) == pytest.approx(5000, rel=0.06)
    bursts = list(arrivals(50.0, 10, 100.0, random.Random(1)))
    assert len(bursts) == pytest.approx(5000, rel=0.15)
    assert len(bursts) == 10 * len(set(bursts))
    assert list(arrivals(0.0, 1, 100.0, random.Random(1))) == []


async def test_in_an_open_loop_a_slow_server_makes_turns_late_and_not_rare() -> None:
    work = workload(session(turns=4, delay=0.02))
    async with MockEngine(first_token=0.1) as engine:
        records, _ = await measured(engine, work, Point(0, 0.0, 2), session_rate=30.0, seconds=1.0)
    first = [r for r in records if r.play == 0]
    late = [r.sent - r.intended for r in first]
    assert late == sorted(late)
    assert late[-1] > 0.2  # three turns of 0.1 s in place of 0.02 s
    assert all(r.sent - r.due < r.sent - r.intended for r in first[1:])
    starts = sorted(r.intended for r in records if r.turn == 0)
    assert len(starts) > 3
    assert max(starts) < 1.0


async def test_a_failed_turn_advances_its_session_and_an_overflow_ends_it() -> None:
    async with MockEngine(context_tokens=70) as engine:
        engine.behave("status-500.first-1")
        records, _ = await measured(engine, workload(session(turns=4)), ONE_LANE, seconds=1.0)
    first = [r for r in records if r.play == 0]
    assert [(r.turn, r.outcome) for r in first] == [(0, "http_500"), (1, "ok"), (2, "overflow")]
    assert any(r.play == 1 for r in records)


async def test_what_is_in_flight_when_the_grace_is_over_is_unfinished() -> None:
    async with MockEngine(first_token=5.0) as engine:
        records, run = await measured(
            engine, workload(session()), ONE_LANE, seconds=0.05, grace=0.1
        )
        await engine.quiet()
    assert [r.outcome for r in records] == ["unfinished"]
    assert run.end < 2.0


async def test_cancelled_requests_are_neither_success_nor_failure() -> None:
    async with MockEngine(pace=0.005) as engine:
        records, _ = await measured(
            engine, workload(session(output=20)), ONE_LANE, cancel_share=1.0, seconds=0.2
        )
    assert records
    assert {r.outcome for r in records} == {"cancelled"}
    assert not any(r.ended for r in records)
    assert all(0 < r.events <= 20 for r in records)


async def test_a_fault_runs_its_command_at_its_time(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    touch = f"{sys.executable} -c \"open('{mark}', 'w')\""
    async with MockEngine() as engine:
        _, run = await measured(
            engine, workload(session(delay=0.05)), ONE_LANE, faults=(Fault(0.1, touch),), seconds=1
        )
    (fault,) = run.faults
    assert fault.code == 0
    assert fault.at - run.start == pytest.approx(0.1, abs=0.3)
    assert mark.exists()


async def test_texts_are_sent_word_for_word_with_the_servers_own_answers() -> None:
    def turn(text: str) -> Turn:
        return Turn(start=0, delay=0, input_tokens=0, output_tokens=3, threaded=True,
                    messages=({"role": "user", "content": text},))  # fmt: skip

    tree = session(turns=1)
    tree = type(tree)(id="t", turns=(turn("one"), turn("two")), block_tokens=1)
    async with MockEngine() as engine:
        records, _ = await measured(engine, workload(tree), ONE_LANE, vocabulary=None, seconds=1.0)
    first = [r for r in records if r.play == 0]
    # marks: user + answer, then user, assistant, user, answer; 3 words of the answer between
    assert [r.prompt_tokens for r in first] == [3, 1 + 1 + 1 + 3 + 1 + 1 + 1]


async def test_tool_calls_are_checked_against_their_schema() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    impossible = {"type": "function", "function": {
        "name": "look", "parameters": {**schema, "properties": {"q": {"not": {}}}}}}  # fmt: skip
    counted = []
    for definition in (tool, impossible):
        async with MockEngine() as engine:
            records, _ = await measured(
                engine, workload(session(output=40)), ONE_LANE, tools=Tools([definition]),
                extra={"tool_choice": "required"}, seconds=1.0,
            )  # fmt: skip
        counted.append((sum(r.calls for r in records), sum(r.invalid_calls for r in records)))
    (calls, invalid), (bad_calls, bad_invalid) = counted
    assert calls > 0
    assert invalid == 0
    assert bad_invalid == bad_calls > 0


async def test_a_server_that_lies_about_usage_is_noticed() -> None:
    async with MockEngine(behaviour="no-usage") as engine:
        records, _ = await measured(engine, workload(session()), ONE_LANE, seconds=1.0)
    assert {r.completion_tokens for r in records} == {None}
    assert {r.osl for r in records} == {4}


async def test_an_answer_without_an_end_is_a_failure() -> None:
    async with MockEngine(behaviour="end-after-2") as engine:
        records, _ = await measured(engine, workload(session()), ONE_LANE, seconds=1.0)
    assert {r.outcome for r in records} == {"cut"}


async def test_the_same_seed_sends_the_same_requests() -> None:
    async def sent() -> list[tuple[str, int, int]]:
        work = workload(*(session(f"s{n}", delay=0.01) for n in range(5)))
        async with MockEngine() as engine:
            records, _ = await measured(engine, work, Point(3, 0.0, 9), start_window=(0.2, 0.8))
        return sorted((r.session, r.play, r.turn) for r in records if r.play < 3)

    assert await sent() == await sent()


async def test_another_point_or_run_with_the_same_seed_finds_nothing_cached() -> None:
    async def first_prompt(nonce: str) -> str:
        async with MockEngine(pace=0.01) as engine:  # its journal keeps the latest requests only
            await measured(engine, workload(session()), ONE_LANE, nonce=nonce, seconds=0.2)
            body = msgspec.json.decode(engine.requests[0].body)
        return str(body["messages"][-1]["content"])

    one, other, again = [await first_prompt(nonce) for nonce in ("1", "2", "1")]
    assert one.split()[:8] != other.split()[:8]
    assert one.split()[8:] == other.split()[8:]
    assert one == again


async def test_subagents_in_flight_have_the_grace_when_their_parent_has_no_time_left() -> None:
    branch = Subagent(after_turn=0, delay=0.0, session=session("s/sub", 1, output=60))
    for cap in (None, 10.0):
        async with MockEngine(pace=0.02) as engine:
            records, run = await measured(
                engine, workload(session(turns=2, delay=60.0, subagents=[branch])), ONE_LANE,
                seconds=0.3, system_idle_cap=cap,
            )  # fmt: skip
        assert {(r.session, r.outcome) for r in records} == {("s", "ok"), ("s/sub", "ok")}
        assert run.end - run.start >= 1.0


async def test_a_point_lasts_its_seconds_even_if_nothing_is_due_any_more() -> None:
    async with MockEngine() as engine:
        _, run = await measured(
            engine, workload(session(turns=2, delay=60.0)), ONE_LANE, seconds=0.4,
            system_idle_cap=None,
        )  # fmt: skip
    assert run.end - run.start >= 0.4


async def test_in_an_open_loop_a_wait_is_what_the_server_left_of_it() -> None:
    work = workload(session(turns=3, delay=0.3))
    async with MockEngine(first_token=0.1) as engine:
        records, _ = await measured(engine, work, Point(0, 0.0, 2), session_rate=2.0, seconds=2.0)
    play = [r for r in records if r.play == 0]
    for before, after in pairwise(play):
        assert after.wait == pytest.approx(max(0.0, after.intended - before.end), abs=1e-4)
        assert after.wait < 0.25
    assert len(play) > 1


async def test_in_an_open_loop_a_slow_subagent_is_not_the_generators_lag() -> None:
    branch = Subagent(after_turn=0, delay=0.0, session=session("s/sub", 1, output=20))
    tree = session(turns=2, delay=0.1, subagents=[branch], waits={1: (0,)})
    async with MockEngine(pace=0.02) as engine:
        records, _ = await measured(
            engine, workload(tree), Point(0, 0.0, 2), session_rate=1.0, seconds=4.0
        )
    ends = {(r.session, r.turn): r for r in records if r.play == 0}
    assert ends["s", 1].due >= ends["s/sub", 0].end
    assert ends["s", 1].intended < ends["s/sub", 0].end


async def test_faults_run_beside_each_other_and_do_not_stretch_the_point() -> None:
    faults = (Fault(0.0, "sleep 60"), Fault(0.1, "false"))
    async with MockEngine() as engine:
        _, run = await measured(
            engine, workload(session(delay=0.05)), ONE_LANE, faults=faults, seconds=1.0
        )
    assert [fault.told for fault in run.faults] == [
        "sleep 60 (still ran at the end)", "false (exit code 1)",
    ]  # fmt: skip
    assert run.end < 30


async def test_cold_requests_are_given_up_as_well() -> None:
    async with MockEngine(pace=0.005) as engine:
        records, _ = await measured(
            engine, workload(session()), Point(0, 50.0, 5), seconds=0.3, cancel_share=1.0,
            cold_input=LogNormal(50, 0.0, 20, 200), cold_output=LogNormal(20, 0.0, 1, 20),
        )  # fmt: skip
    assert records
    assert {r.outcome for r in records} == {"cancelled"}


async def test_a_sessions_name_ends_no_header() -> None:
    async with MockEngine() as engine:
        await measured(engine, workload(session("a\r\nx-evil: 1")), ONE_LANE, seconds=0.1)
        headers = {bytes(name).lower(): bytes(value) for name, value in engine.requests[0].headers}
    assert b"x-evil" not in headers
    assert headers[b"x-session-id"] == b"a%0D%0Ax-evil:%201-0"
