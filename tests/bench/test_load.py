import json
import shutil
from pathlib import Path

import pytest

from prime_inference.bench.gateway import load as module
from prime_inference.bench.gateway.closed_loop import measure
from prime_inference.bench.gateway.load import LoadFailed, Target, run_load
from prime_inference.bench.gateway.machine import choose_cores
from prime_inference.bench.gateway.upstream import WHOLE_BODY, start_mock
from prime_inference.engines.mock import MockEngine
from tests.bench.conftest import Ask


async def test_answers_and_latencies_are_counted(wanted: Ask):
    async with MockEngine(first_token=0.02) as engine:
        load = await measure(wanted(engine), 3, 0.3)
        assert load.requests == len(engine.requests) >= 3
    assert load.errors == 0
    assert 20 <= load.p50_ms <= load.p90_ms <= load.p99_ms
    assert load.seconds >= 0.3


@pytest.mark.parametrize("behaviour", ["status-500", "reset", "not-http", "length-plus-5"])
async def test_anything_but_a_whole_200_is_an_error(wanted: Ask, behaviour: str):
    async with MockEngine(behaviour=f"{behaviour}.every-2") as engine:
        load = await measure(wanted(engine), 1, 0.2)
    assert load.errors > 0
    assert abs(load.requests - load.errors) <= 1


async def test_a_rate_is_kept(wanted: Ask):
    async with MockEngine() as engine:
        load = await measure(wanted(engine), 4, 0.5, per_second=40)
    assert 4 <= load.requests <= 20


@pytest.mark.parametrize("generator", ["wrk", "closed_loop"])
def test_a_generator_runs_as_a_process_of_its_own(
    generator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if generator == "wrk" and not shutil.which("wrk"):
        pytest.skip("wrk is not installed")
    core = choose_cores().load
    body = tmp_path / "body.json"
    body.write_text(json.dumps(WHOLE_BODY))
    mock = start_mock(tmp_path, core, pace_ms=0)
    if generator != "wrk":
        monkeypatch.setenv("PATH", "")
    try:
        target = Target(f"{mock.base_url}/chat/completions", "some-key")
        load = run_load(target, body, connections=2, seconds=1, core=core)
        bad = run_load(Target(f"{mock.base_url}/no"), body, connections=1, seconds=1, core=core)
    finally:
        mock.child.stop()
    assert module.generator_name().rpartition(".")[2] == generator
    assert load.requests > 0
    assert load.errors == 0
    assert bad.errors > 0


def test_a_generator_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LoadFailed, match="No such file"):
        run_load(Target("http://127.0.0.1:9/"), tmp_path / "none", connections=1, seconds=1, core=0)
