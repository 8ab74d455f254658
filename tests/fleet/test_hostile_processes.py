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
from prime_inference.fleet.launcher import readiness
from prime_inference.fleet.launcher.deployment import RunningDeployment
from prime_inference.fleet.launcher.lifecycle import Readiness
from prime_inference.fleet.launcher.readiness import (
    Prober,
    ask,
    parse_in_flight,
    probing_client,
    read_readiness,
)
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
async def serving(head, part, pause):
    """A port where every request is answered with `head` and then `part` again and again."""
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
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(one.wait_closed() for one in writers), return_exceptions=True)


OK = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "part", "pause", "responds"),
    [
        (OK, b" ", 0.01, True),  # drips for ever
        (OK, b"x" * 65536, 0, True),  # floods
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n", 0, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001, False),
        (b"", b"", 0, False),
        (b"SSH-2.0-OpenSSH\r\n", b"", 0, False),
    ],
    ids=["drip", "flood", "headers", "interim", "silent", "other"],
)
async def test_a_question_ends_in_time_and_takes_no_more_than_its_bytes(
    head, part, pause, responds, monkeypatch
):
    monkeypatch.setattr(readiness, "MAX_METRICS_BYTES", 200_000)
    prober, client = Prober(), probing_client()
    try:
        async with serving(head, part, pause) as port, asyncio.timeout(30):
            answer = await ask(client, f"http://127.0.0.1:{port}/", 200_000, 0.3)
            assert (answer is not None) == responds
            assert answer is None or (answer.status, answer.body) == (200, None)
            assert await prober.in_flight(port) is None
    finally:
        await prober.close()
        await client.aclose()


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
