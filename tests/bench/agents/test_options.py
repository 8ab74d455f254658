"""What the options of `prime inference bench` refuse before anything is sent."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
import uvloop

from prime_inference.bench.agents.metrics import Slo
from prime_inference.bench.agents.plan import Fault, Options
from prime_inference.bench.interruption import terminated_as_interrupted
from prime_inference.cli.bench_options import log_normal, numbers, require_free, searchable
from prime_inference.cli.failures import WrongUsage


@pytest.mark.parametrize("text", ["", "nan", "inf", "1,-1", "1e400", "1,1", "2,1.0,2"])
def test_numbers_are_finite_and_each_is_there_once(text: str) -> None:
    with pytest.raises(ValueError, match=r"numbers with commas|twice"):
        numbers(text, float)
    assert numbers("2,0.5", float) == [2.0, 0.5]


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "100:nan", "100:-1"])
def test_a_length_has_a_median_above_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="a length is"):
        log_normal(text, 1.0, 100, 1.0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"session_rate": 0.0}, "a rate of sessions"),
        ({"session_rate": float("nan")}, "a rate of sessions"),
        ({"session_rate": float("inf")}, "a rate of sessions"),
        ({"seconds": float("nan")}, "lasts longer than nothing"),
        ({"seconds": float("inf")}, "lasts longer than nothing"),
        ({"grace": float("nan")}, "grace is not below 0"),
        ({"lag_bound": float("nan")}, "lag_bound is not below 0"),
        ({"seconds": 5.0, "faults": (Fault(5.0, "true"),)}, "would never come"),
    ],
)
def test_rules_that_no_point_can_follow_are_refused(
    options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        Options(**options)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("-1:true", "a fault's time"),
        ("nan:true", "a fault's time"),
        ("1:no-such-command-here now", "not to be run: no-such-command-here"),
        ("1:", "a fault is"),
    ],
)
def test_a_fault_that_cannot_run_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Fault.parse(text)
    assert Fault.parse("1.5:true now").arguments == ["true", "now"]


def test_a_search_refuses_what_it_would_not_heed() -> None:
    target = Slo(e2e=100)
    searchable(target, [8], [0.5], open_loop=False, resume=False)
    for slo, counts, rates, open_loop, resume in (
        (Slo(), [8], [0.0], False, False),
        (target, [8], [0.0, 1.0], False, False),
        (target, [8, 16], [0.0], False, False),
        (target, [0], [1.0], False, False),
        (target, [8], [0.0], True, False),
        (target, [8], [0.0], False, True),
    ):
        with pytest.raises(WrongUsage, match="--find-concurrency"):
            searchable(slo, counts, rates, open_loop=open_loop, resume=resume)


def test_a_run_is_not_overwritten_unless_it_is_asked_for(tmp_path: Path) -> None:
    require_free(tmp_path, overwrite=False)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(WrongUsage, match="holds a run already"):
        require_free(tmp_path, overwrite=False)
    require_free(tmp_path, overwrite=True)


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_ends_a_run_as_ctrl_c_does(interrupt: Any) -> None:
    """Also one that a script started in its background, where Ctrl-C is ignored."""
    ours = signal.signal(signal.SIGINT, interrupt)
    try:
        _terminated()
        assert signal.getsignal(signal.SIGINT) == interrupt
    finally:
        signal.signal(signal.SIGINT, ours)


def _terminated() -> None:
    settled: list[bool] = []

    async def run() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGTERM)
        try:
            await asyncio.sleep(60)
        finally:
            settled.append(True)  # where a results file says `interrupted`

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, terminated_as_interrupted():
        uvloop.run(run())
    assert ended.value.code == 143
    assert settled == [True]
    assert signal.getsignal(signal.SIGTERM) == before
