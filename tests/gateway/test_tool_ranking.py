"""A deployment that gets tool calls wrong is offered requests with tools after the others."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from typer.testing import CliRunner

from prime_inference.cli.main import app
from prime_inference.engines.mock import MockEngine
from prime_inference.routing.tool_calls import LEAST_ANSWERS

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway
from .test_tool_verdicts import TOOL

CALL = {"tools": [TOOL], "tool_choice": "required"}


async def ask(gateway: RunningGateway, count: int = 1, session: str = "") -> None:
    body = {"model": MODEL, "messages": MESSAGES, **CALL}
    headers = {"x-session-id": session} if session else {}
    for _ in range(count):
        assert (await gateway.post("/chat/completions", body, **headers)).status_code == 200


async def one_engine_broken(gateway: RunningGateway, engine: MockEngine, spare: MockEngine) -> None:
    """Both answer often enough to be compared; `engine` breaks its calls.

    Ties go to `engine`, so `spare` is reached by naming sessions until some live there.
    """
    engine.behave("calls-1.broken-arguments")
    for number in range(20 * LEAST_ANSWERS):
        if min(len(engine.requests), len(spare.requests)) >= LEAST_ANSWERS:
            break
        await ask(gateway, session=f"s{number}")
    assert await gateway.metric("prime_tool_call_errors_total", deployment="engine-0") > 0


async def status(gateway: RunningGateway, *options: str) -> str:
    """What an operator is shown."""
    where = ["--control-url", gateway.control_url, "--state-dir", str(gateway.state_dir)]
    environment = {"COLUMNS": "250"}
    shown = await asyncio.to_thread(
        CliRunner().invoke, app, ["inference", "status", *where, *options], env=environment
    )
    assert shown.exit_code == 0, shown.output
    return shown.output


async def endpoints(gateway: RunningGateway) -> dict[str, Any]:
    listed = (await gateway.get(f"/models/{MODEL}/endpoints")).json()["data"]["endpoints"]
    return {each["name"]: each for each in listed}


async def test_the_engine_that_breaks_calls_comes_last_for_tools_and_as_ever_for_text(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO)
    gateway = await start_gateway(engine, spare)
    await one_engine_broken(gateway, engine, spare)
    broken, well = len(engine.requests), len(spare.requests)
    await ask(gateway, 6)
    for number in range(6):  # sessions yield, wherever their home is
        await ask(gateway, session=f"s{number}")
    assert (len(engine.requests), len(spare.requests)) == (broken, well + 12)
    await gateway.chat()  # text goes where it went before: ties go to the first
    assert len(engine.requests) == broken + 1

    endpoint = (await endpoints(gateway))["engine-0"]
    assert endpoint["tool_calls_deprioritised"] is True
    assert endpoint["tool_call_error_rate_last_2h"]["InvalidJson"] == 100.0
    assert not (await endpoints(gateway))["engine-1"]["tool_calls_deprioritised"]
    place = {"deployment": "engine-0", "model": MODEL}
    assert await gateway.metric("prime_deployment_tool_calls_behind", **place) == 1
    assert await gateway.metric("prime_deployment_tool_call_error_rate", **place) == 1.0
    changed = {"deployment": "engine-0", "rank": "behind"}
    assert await gateway.metric("prime_tool_call_rank_changes_total", **changed) == 1
    said = [record for record in caplog.records if "for requests with tools" in record.message]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert "engine-0 is ranked behind the others" in said[0].message

    view = json.loads(await status(gateway, "-o", "json"))
    shown = {one["id"]: one for one in view["deployments"]}
    assert shown["engine-0"]["tool_call_error_rate"] == 1.0
    assert shown["engine-0"]["tool_calls_behind"] is True
    assert shown["engine-1"]["tool_call_error_rate"] == 0.0
    (model,) = [one for one in view["models"] if one["id"] == MODEL]
    answers = [shown[name]["tool_call_answers"] for name in ("engine-0", "engine-1")]
    assert model["tool_call_answers"] == sum(answers)
    assert model["tool_call_error_rate"] == pytest.approx(answers[0] / sum(answers))
    table = await status(gateway)
    assert "Tool calls wrong" in table
    assert f"100.0% of {answers[0]} (behind)" in table


async def test_it_is_still_asked_where_the_others_fail_or_are_full(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    await one_engine_broken(gateway, engine, spare)
    spare.behave("status-500")
    before = len(engine.requests)
    await ask(gateway, 8)  # the first five fail over; then `spare` is ejected
    assert len(engine.requests) == before + 8
    view = json.loads(await status(gateway, "-o", "json"))
    states = {one["id"]: (one["state"], one["tool_calls_behind"]) for one in view["deployments"]}
    assert states["engine-0"] == ("serving", True)
    assert states["engine-1"][0] == "ejected"
