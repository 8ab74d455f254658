"""The fleet changes while requests are served, and none of them notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from prime_inference.engines.mock import MockEngine, expected_text

from .conftest import StartGateway
from .followed_file import FollowedFile, started
from .running import MESSAGES, eventually


async def test_requests_go_on_where_a_deployment_is_gone_and_new_ones_go_elsewhere(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    engine.behave("pace-20ms")
    long = asyncio.ensure_future(gateway.stream(max_tokens=50))
    await eventually(lambda: bool(engine.requests))
    fleet.write("two")
    await fleet.taken(1)
    assert (await gateway.chat()).status_code == 200
    streamed = await long
    assert (streamed.text(), streamed.done) == (expected_text(MESSAGES, 50), True)
    assert (len(engine.requests), len(spare.requests)) == (1, 1)
    await eventually(lambda: not engine.connections)  # it was the last request there


@pytest.mark.parametrize("later", ["r1", "r2"])
async def test_an_answer_goes_on_only_with_the_revision_that_it_began_with(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine, later: str
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    for either in (engine, spare):
        either.behave("pace-20ms.cut-after-40")
    long = asyncio.ensure_future(gateway.stream())
    await eventually(lambda: bool(engine.requests or spare.requests))
    for either in (engine, spare):
        either.behave("")
    fleet.write("two", "one", revision=later)
    await fleet.taken(1)
    streamed = await long
    asked = len(engine.requests) + len(spare.requests)
    if later == "r1":
        assert (streamed.text(), streamed.error, asked) == (expected_text(MESSAGES), None, 2)
    else:
        assert streamed.error is not None
        assert (streamed.text(), asked) == (expected_text(MESSAGES, 40), 1)


async def test_a_deployment_that_moves_is_asked_at_its_new_address(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    await gateway.chat()
    fleet.move("one", spare)
    fleet.write("one")
    await fleet.taken(1)
    await gateway.chat()
    assert (len(engine.requests), len(spare.requests)) == (1, 1)


async def test_a_deployment_that_drains_is_offered_nothing(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=spare, two=engine)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    fleet.write("one", "two", more="draining = true")  # the last table is that of `two`
    await fleet.taken(1)
    for _ in range(5):
        assert (await gateway.chat()).status_code == 200
    assert (len(engine.requests), len(spare.requests)) == (0, 5)
    fleet.write("two", more="draining = true")
    await fleet.taken(2)
    refused = await gateway.chat()
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_drained"
    assert "retry-after" not in refused.headers  # nobody knows
    assert await gateway.metric("prime_slot_refusals_total", reason="drained") == 1


async def test_a_file_that_is_wrong_changes_nothing_and_is_told(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    fleet.write("one", more="slotz = 3")
    await fleet.taken(0, refused=1)
    assert (await gateway.chat()).status_code == 200
    assert await gateway.metric("prime_fleet_stale") == 1
    assert await gateway.metric("prime_fleet_reloads_total", outcome="refused") == 1
    fleet.write("one", model="acme/other")  # an id is bound to its model
    await fleet.taken(0, refused=2)
    assert (await gateway.chat()).status_code == 200
    fleet.write("one", more="slots = 3".replace("slots", "schema_alternatives"))
    await fleet.taken(1, refused=2)
    assert await gateway.metric("prime_fleet_stale") == 0


async def test_no_request_notices_that_deployments_come_and_go(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    engine.behave("pace-1ms")
    over = False

    async def client() -> list[tuple[str, bool]]:
        seen = []
        while not over:
            streamed = await gateway.stream(max_tokens=20)
            seen.append((streamed.text(), streamed.done))
        return seen

    clients = [asyncio.ensure_future(client()) for _ in range(8)]
    for number, names in enumerate([("one",), ("two",), ("one", "two"), ("two",), ("one",)], 1):
        fleet.write(*names)
        await fleet.taken(number)
    over = True
    seen = [each for answers in await asyncio.gather(*clients) for each in answers]
    assert len(seen) >= 8
    assert set(seen) == {(expected_text(MESSAGES, 20), True)}


async def test_models_come_and_go_with_the_fleet(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    fleet.write("two", model="acme/other")
    await fleet.taken(1)
    assert (await gateway.chat()).status_code == 404
    assert (await gateway.chat(model="acme/other")).status_code == 200
    listed = (await gateway.get("/models")).json()["data"]
    assert [model["id"] for model in listed] == ["acme/other"]
