"""Frontends and workers that answer anything, slowly, or without end."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import CacheReports, cache_report, parse_reports
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.launcher import readiness
from prime_inference.fleet.launcher.asking import MOST_PIECES, Answer, Asker
from prime_inference.fleet.launcher.control import Command, ask, listening
from prime_inference.fleet.launcher.deployment import RunningDeployment
from prime_inference.fleet.launcher.lifecycle import Readiness
from prime_inference.fleet.launcher.readiness import Prober, parse_in_flight, read_readiness
from prime_inference.fleet.launcher.state import StateFolder
from tests.fleet.fleets import deployment, listed, pids, running, until, write_fleet

NUMBERS = st.sampled_from(
    ["NaN", "+Inf", "-Inf", "-5", "1e999", "lots", "", "9" * 5000, "3", "1e3"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ready", "namespaces", "worker_types", "decode", "workers"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(JSON.map(lambda value: msgspec.json.encode(value)) | st.binary(max_size=20))
def test_whatever_a_frontend_says_is_its_readiness_or_none(body):
    found = read_readiness(body)
    assert found is None or all(
        isinstance(count, int) and count >= 0 for count in found.workers.values()
    )


@pytest.mark.parametrize(
    "body",
    [
        b'{"ready":true,"namespaces":[1]}',
        b'{"ready":true,"namespaces":{"a":null}}',
        b'{"ready":true,"namespaces":{"a":"b"}}',
        b'{"ready":true,"namespaces":{"a":{"worker_types":{"decode":3}}}}',
        b'{"ready":true,"namespaces":{"a":{"worker_types":{"decode":{"workers":1e999}}}}}',
        b'{"ready":true,"namespaces":{"a":{"worker_types":{"decode":{"workers":-5}}}}}',
        b'{"ready":true,"namespaces":{"a":{"worker_types":{"decode":{"workers":true}}}}}',
    ],
)
def test_what_has_another_shape_counts_no_worker(body):
    assert read_readiness(body) == Readiness(True, {})


@pytest.mark.parametrize("role", ["\\ud800", "\\u001b[31m", "worker", "frontend"])
def test_a_role_that_nobody_knows_is_left_out(role):
    types = b'{"ROLE":{"workers":2},"decode":{"workers":1}}'
    body = b'{"ready":true,"namespaces":{"a":{"worker_types":' + types + b"}}}"
    assert read_readiness(body.replace(b"ROLE", role.encode())) == Readiness(True, {"decode": 1})


def test_nesting_without_end_is_no_answer():
    assert read_readiness(b"[" * 100_000) is None


@given(NUMBERS)
def test_a_load_that_is_no_count_is_not_known(number):
    known = number in ("3", "1e3")
    text = f'dynamo_frontend_inflight_requests{{model="m"}} {number}\n'
    good = 'dynamo_frontend_inflight_requests{model="n"} 2\n'
    assert parse_in_flight(good + text) == (2 + int(float(number)) if known else None)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.text(max_size=5)), max_size=5))
def test_metrics_of_any_kind_make_a_report_that_json_can_carry(lines):
    text = "".join(
        f'dynamo_component_router_input_sequence_tokens_sum{{phase="prefill"}} {one}\n{other}\n'
        f"vllm:request_queue_time_seconds_sum {one}\nvllm:request_queue_time_seconds_count {two}\n"
        for one, two, other in lines
    )
    report = cache_report(text, [text], [text])
    assert all(0 <= value < math.inf for value in msgspec.structs.astuple(report) if value)
    data = msgspec.json.encode(CacheReports(1.0, {"x": report}))
    assert parse_reports(data) == CacheReports(1.0, {"x": report})


def test_a_part_of_a_request_and_more_hits_than_tokens_are_no_figures():
    wait = "vllm:request_queue_time_seconds"
    report = cache_report(
        "dynamo_component_router_input_sequence_tokens_sum 5\n"
        "dynamo_component_router_kv_selected_cached_prefix_tokens_total 500\n",
        [f"{wait}_sum 1e300\n{wait}_count 5e-324\n"],
        ["vllm:external_prefix_cache_hits_total 3\n"],
    )
    assert report == CacheReport(prompt_tokens=5, cached_tokens=5)
    assert report.hit_rate == 1


def test_labels_may_have_braces_and_quotes_in_them():
    name = "dynamo_component_router_input_sequence_tokens_sum"
    text = (
        f'{name}{{a="}}\\"{{",phase="prefill"}} 5 1700000000\n'
        f'{name}{{a="x", phase="decode"}} 5\n'
        f'{name}{{not_phase="decode"}} 2\n'
        f"{name}_of_others 7\n"
    )
    assert cache_report(text, []).prompt_tokens == 7


@given(JSON)
def test_a_bad_report_takes_no_other_along(value):
    good = {"prompt_tokens": 4, "cached_tokens": 2}
    data = msgspec.json.encode({"taken_at": 1.0, "reports": {"bad": value, "good": good}})
    assert parse_reports(data).reports["good"] == CacheReport(4, 2)
    bad = b'{"taken_at": 1, "reports": {"x": {"cached_tokens": null}, "y": {"host_hits": -1}}}'
    assert parse_reports(bad).reports == {}


# -- over a socket


@contextlib.asynccontextmanager
async def serving(head, part=b"", pause=0.0):
    """A port where every request is answered with `head` and then `part` again and again; and the
    requests that came."""
    writers = []

    async def serve(reader, writer):
        writers.append(writer)
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while part and not writer.is_closing():
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(pause)
            await reader.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], writers
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(one.wait_closed() for one in writers), return_exceptions=True)


OK = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
CUT_OFF = Answer(200, None)


@pytest.mark.parametrize(
    ("head", "part", "pause", "said"),
    [
        (OK, b" ", 0.01, CUT_OFF),  # drips for ever
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"", 0, CUT_OFF),
        (b"HTTP/1.1 500 No\r\ncontent-length: 1\r\n\r\nx", b"", 0, Answer(500, b"x")),
        (INTERIM + CHUNKED + b"1\r\nx\r\n0\r\n\r\n" + OK + b"y", b"", 0, Answer(200, b"x")),
        (b"HTTP/1.1 101 No\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n", b"", 0, None),
        (b"", b"", 0, None),
        (b"SSH-2.0-OpenSSH\r\n", b"", 0, None),
    ],
    ids=["drip", "short", "error", "whole", "upgrade", "silent", "other"],
)
async def test_an_answer_is_whole_in_time_or_none(head, part, pause, said):
    async with serving(head, part, pause) as (port, asked), asyncio.timeout(30):
        asker = Asker()
        whole = said is not None and said.body is not None
        for _ in range(2):  # it is asked as often as one that is well
            answer = await asker.ask(f"http://127.0.0.1:{port}/", 200_000, 10.0 if whole else 0.5)
            assert answer == said
        assert len(asked) == 2


@pytest.mark.parametrize(
    ("head", "part", "said"),
    [
        (OK, b"x" * 65536, CUT_OFF),
        (CHUNKED, b"1\r\nx\r\n" * 1000, CUT_OFF),
        (CHUNKED + b"1;", b"x" * 65536, CUT_OFF),
        (CHUNKED + b"1\r\nx\r\n" * (MOST_PIECES + 1) + b"0\r\n\r\n", b"", CUT_OFF),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 1000, None),
        (b"HTTP/1.1 200 OK\r\na: ", b"b" * 65536, None),
        (INTERIM, INTERIM * 1000, None),
    ],
    ids=["flood", "bytes", "extension", "pieces", "headers", "header", "interim"],
)
async def test_one_that_floods_is_cut_off_and_asked_less_and_less_often(head, part, said):
    now = [0.0]
    async with serving(head, part) as (port, asked), asyncio.timeout(30):
        asker = Asker(lambda: now[0])
        for questions in range(1, 4):
            for _ in range(5):  # what it said stands
                assert await asker.ask(f"http://127.0.0.1:{port}/", 200_000, 10.0) == said
                now[0] += 0.01
            assert len(asked) == questions
            now[0] += (0.2, 0.5, 1.0)[questions - 1]


READY = b'{"ready":true,"namespaces":{"d":{"worker_types":{"decode":{"workers":1}}}}}'


@pytest.mark.parametrize(("status", "ready"), [(200, True), (404, False), (500, False)])
async def test_only_a_success_makes_ready_and_counts(status, ready):
    length = len(READY)
    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, length)
    async with serving(head + READY) as (port, _):
        assert await Prober().readiness(port, "m") == Readiness(ready, {"decode": 1})
    metrics = b'dynamo_frontend_inflight_requests{model="m"} 3\n'
    head = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(metrics))
    async with serving(head + metrics) as (port, _):
        assert await Prober().in_flight(port) == (3 if ready else None)


async def test_metrics_without_end_count_nothing(monkeypatch):
    monkeypatch.setattr(readiness, "MAX_METRICS_BYTES", 200_000)
    async with serving(OK, b"x" * 65536) as (port, _), asyncio.timeout(30):
        assert await Prober().in_flight(port) is None


@pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")
async def test_one_that_is_slow_to_answer_holds_up_no_other(tmp_path, monkeypatch):
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        look = RunningDeployment.look

        async def slow(self):
            if self.planned.id == "tiny-b":
                await asyncio.sleep(3600)
            await look(self)

        monkeypatch.setattr(RunningDeployment, "look", slow)
        await supervisor.scale("tiny-a", "decode", 1)

        os.kill(pids(await supervisor.status())["tiny-a/frontend"], signal.SIGSTOP)
        await until(supervisor, lambda status: deployment(status, "tiny-a")["state"] == "failing")
        await until(supervisor, lambda _: listed(supervisor, tmp_path / "state") == ["tiny-b"])


async def test_a_status_that_is_no_text_is_told_and_ends_no_command(tmp_path):
    """Names of files may be any bytes."""
    async with running(write_fleet(tmp_path), tmp_path / "state") as supervisor:
        supervisor._files.unwritten["x"] = "\udcff"
        folder = StateFolder(tmp_path / "state" / "fleets" / "test")
        async with listening(supervisor, folder):
            with pytest.raises(FleetRefused, match="UnicodeEncodeError"):
                await ask(folder, Command("status"))
