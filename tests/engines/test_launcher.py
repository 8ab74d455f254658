"""Engines of a fleet as child processes: started, kept alive, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from prime_inference.domain.fleet import Fleet, FleetInvalid, Launch
from prime_inference.domain.models import Deployment, Model
from prime_inference.engines.launcher import EngineLauncher
from prime_inference.engines.mock import expected_text
from prime_inference.engines.supervised import EngineFailed

MODEL = Model("acme/echo-1", "r1", 0, 4096, 4096)
MESSAGES = [{"role": "user", "content": "hello"}]


async def no_weights() -> Path:
    raise AssertionError("nobody asked for the default model")


def fleet(*names: str, engine: Launch | None = None) -> Fleet:
    return Fleet(
        models=(MODEL,),
        deployments=tuple(
            Deployment(name, MODEL.id, "east", "", "vllm", 8, MODEL.id) for name in names
        ),
        datacenters=("east",),
        launches=dict.fromkeys(names, engine or Launch("mock")),
    )


@pytest_asyncio.fixture
async def launcher() -> AsyncIterator[EngineLauncher]:
    launcher = EngineLauncher(no_weights)
    yield launcher
    await launcher.stop_all_but(())


async def answer(deployment: Deployment) -> str:
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"model": deployment.upstream_model, "messages": MESSAGES}
        response = await client.post(f"{deployment.base_url}/chat/completions", json=body)
    return str(response.json()["choices"][0]["message"]["content"])


def children() -> set[int]:
    """Processes that this one has started and that run."""
    pid = os.getpid()
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


async def test_every_deployment_without_an_address_gets_one_that_answers(
    launcher: EngineLauncher,
):
    started = await launcher.start(fleet("east-1", "east-2"))
    assert len({deployment.base_url for deployment in started.deployments}) == 2
    for deployment in started.deployments:
        assert await answer(deployment) == expected_text(MESSAGES)
    assert launcher.not_ready() == []


async def test_what_runs_is_left_alone_and_what_is_gone_is_stopped(launcher: EngineLauncher):
    first, second = (await launcher.start(fleet("east-1", "east-2"))).deployments
    again, third = (await launcher.start(fleet("east-1", "east-3"))).deployments
    assert again.base_url == first.base_url
    assert await answer(second) == expected_text(MESSAGES)  # until it is told to stop
    await launcher.stop_all_but(["east-1", "east-3"])
    with pytest.raises(httpx.ConnectError):
        await answer(second)
    assert await answer(third) == expected_text(MESSAGES)


async def test_an_engine_that_was_killed_comes_back_at_its_address_and_the_log_names_it(
    launcher: EngineLauncher, caplog: pytest.LogCaptureFixture
):
    before = children()
    (deployment,) = (await launcher.start(fleet("east-1"))).deployments
    (engine,) = children() - before
    os.kill(engine, signal.SIGKILL)
    async with asyncio.timeout(20):
        while True:
            try:
                assert await answer(deployment) == expected_text(MESSAGES)
                break
            except httpx.TransportError:
                await asyncio.sleep(0.05)
    said = [record.getMessage() for record in caplog.records if "supervised" in record.name]
    assert said[0].startswith("deployment east-1: the engine of acme/echo-1 died (status -9)")
    assert all(line.startswith("deployment east-1: ") for line in said)


async def test_an_engine_that_runs_does_not_become_another(launcher: EngineLauncher):
    await launcher.start(fleet("east-1"))
    changed = fleet("east-1", engine=Launch("mock", pace_ms=5))
    with pytest.raises(FleetInvalid, match="give the new one another id"):
        await launcher.start(changed)
    more_slots = fleet("east-1")
    (deployment,) = more_slots.deployments
    await launcher.start(replace(more_slots, deployments=(replace(deployment, slots=9),)))


async def test_one_that_does_not_start_takes_those_started_with_it_away(
    launcher: EngineLauncher, tmp_path: Path
):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    both = fleet("east-1", "east-2")
    launches = {**both.launches, "east-2": Launch("llama.cpp", broken)}
    with pytest.raises(EngineFailed, match=r"^east-2: The engine could not load"):
        await launcher.start(replace(both, launches=launches))
    assert (await launcher.start(fleet("east-1"))).deployments[0].base_url
