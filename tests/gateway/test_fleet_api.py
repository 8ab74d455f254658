"""The operator's API: who may use it, what it shows, what it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .followed_file import FollowedFile, started
from .running import MESSAGES, MODEL, RunningGateway, eventually


async def ask(
    gateway: RunningGateway, method: str, path: str = "", body: Any = None
) -> httpx.Response:
    return await gateway.client.request(
        method, f"{gateway.control_url}/fleet{path}", json=body, headers=gateway.authorization()
    )


async def states(gateway: RunningGateway) -> dict[str, str]:
    view = (await ask(gateway, "GET")).json()
    return {one["id"]: one["state"] for one in view["deployments"]}


def entry(name: str, engine: MockEngine, **more: Any) -> dict[str, Any]:
    return {
        "id": name, "model": MODEL, "datacenter": "east", "engine": "vllm", "slots": 8,
        "base_url": engine.base_url, **more,
    }  # fmt: skip


async def test_the_fleet_is_shown_with_what_was_seen_of_it(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    await gateway.stream()
    view = (await ask(gateway, "GET")).json()
    assert [place["id"] for place in view["datacenters"]] == ["dc-0", "dc-1", "dc-99"]
    assert view["models"][0] | {"waiting": 0} == {
        "id": MODEL, "revision": "r1", "deployments": 2, "serving": 2, "waiting": 0,
        "tool_call_answers": 0, "tool_call_error_rate": None,
    }  # fmt: skip
    first = view["deployments"][0]
    assert (first["id"], first["state"], first["breaker"]) == ("engine-0", "serving", "closed")
    assert (first["slots"], first["answered"], first["in_flight"]) == (256, 1, 0)
    assert 0 < first["leased"] <= 256
    async with asyncio.timeout(10):  # quantiles are a second old at most
        while first["p50_first_token_s"] is None:
            await asyncio.sleep(0.1)
            first = (await ask(gateway, "GET")).json()["deployments"][0]
    assert 0 < first["p50_first_token_s"] <= first["p99_first_token_s"]
    assert (view["degraded"], view["error"], view["replicas"]) == (False, None, 1)


async def test_an_ejected_deployment_is_shown_as_such(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-500")
    for _ in range(8):
        await gateway.chat()
    first = (await ask(gateway, "GET")).json()["deployments"][0]
    assert (first["state"], first["breaker"], first["cause"]) == ("ejected", "open", "consecutive")
    assert first["failed"] == 5
    assert first["error_rate"] > 0


async def test_strangers_see_and_change_nothing(gateway: RunningGateway):
    for headers in ({}, {"authorization": "Bearer pi_live_wrong"}):
        for method, path in (("GET", ""), ("POST", "/deployments"), ("DELETE", "/deployments/a")):
            url = f"{gateway.control_url}/fleet{path}"
            answer = await gateway.client.request(method, url, headers=headers)
            assert answer.status_code == 401
            assert gateway.control_url not in answer.text


async def test_deployments_are_added_drained_moved_and_removed_while_requests_go_on(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    engine.behave("pace-20ms")
    long = asyncio.ensure_future(gateway.stream(max_tokens=60))
    await eventually(lambda: bool(engine.requests))

    added = await ask(gateway, "POST", "/deployments", entry("two", spare))
    assert added.status_code == 200
    assert await states(gateway) == {"one": "serving", "two": "serving"}

    assert (await ask(gateway, "POST", "/deployments/one/drain")).status_code == 200
    assert await states(gateway) == {"one": "draining", "two": "serving"}
    assert (await gateway.chat()).status_code == 200
    assert len(spare.requests) == 1

    assert (await ask(gateway, "POST", "/deployments/one/resume")).status_code == 200
    assert (await ask(gateway, "DELETE", "/deployments/two")).status_code == 200
    assert await states(gateway) == {"one": "serving"}

    place = {"base_url": spare.base_url, "datacenter": "east"}
    assert (await ask(gateway, "POST", "/deployments/one/move", place)).status_code == 200
    assert (await gateway.chat()).status_code == 200
    assert len(spare.requests) == 2
    assert (await long).done
    assert len(engine.requests) == 1


async def test_a_deployment_that_has_drained_is_shown_as_drained(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    assert (await ask(gateway, "POST", "/deployments/one/drain")).status_code == 200
    assert await states(gateway) == {"one": "drained", "two": "serving"}


async def test_the_last_deployment_of_a_model_goes_only_by_force(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    for method, path in (("POST", "/deployments/one/drain"), ("DELETE", "/deployments/one")):
        refused = await ask(gateway, method, path)
        assert refused.status_code == 400
        assert "the last deployment that serves" in refused.json()["error"]["message"]
    assert (await gateway.chat()).status_code == 200
    forced = await ask(gateway, "POST", "/deployments/one/drain", {"force": True})
    assert forced.status_code == 200
    drained = await gateway.chat()
    assert drained.status_code == 503
    assert drained.json()["error"]["code"] == "model_drained"
    told = await gateway.post("/messages", {"model": MODEL, "max_tokens": 1, "messages": MESSAGES})
    assert (told.status_code, told.json()["error"]["type"]) == (503, "api_error")


async def test_two_drains_at_a_time_do_not_take_the_last_two_out(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    answers = await asyncio.gather(
        *(ask(gateway, "POST", f"/deployments/{name}/drain") for name in ("one", "two"))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 400]
    assert (await gateway.chat()).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", "/deployments", {"id": "x", "slotz": 1}, 400, "Did you mean slots"),
        ("POST", "/deployments/won/drain", None, 400, "Did you mean one"),
        ("POST", "/deployments/one/move", {"engine": "vllm"}, 400, "move takes no engine"),
        ("POST", "/deployments/one/move", {"base_url": "x"}, 400, "base_url is not"),
        ("POST", "/deployments/one/melt", None, 404, "nothing at"),
        ("GET", "/deployments/one", None, 405, "takes DELETE"),
        ("PUT", "", None, 405, "takes GET"),
        ("POST", "/deployments", [1], 400, "no JSON object"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_changes_nothing(
    start_gateway: StartGateway,
    tmp_path: Path,
    engine: MockEngine,
    method: str,
    path: str,
    body: Any,
    status: int,
    said: str,
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    refused = await ask(gateway, method, path, body)
    assert (refused.status_code, said in refused.text) == (status, True), refused.text
    assert await states(gateway) == {"one": "serving"}


async def test_the_upstream_of_a_command_line_is_shown_but_not_changed(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine)
    refused = await ask(gateway, "POST", "/deployments", entry("two", engine))
    assert (refused.status_code, "--config" in refused.text) == (400, True)


async def test_every_change_is_in_the_log(
    start_gateway: StartGateway,
    tmp_path: Path,
    engine: MockEngine,
    spare: MockEngine,
    caplog: pytest.LogCaptureFixture,
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    await ask(gateway, "POST", "/deployments/one/drain")
    await ask(gateway, "POST", "/deployments/three/move", {"slots": 7})
    said = [record.getMessage() for record in caplog.records if "fleet_api" in record.name]
    assert said[0].startswith("drain of deployment 'one' {} by 127.0.0.1")
    assert said[1].startswith("move of deployment 'three' {'slots': 7} by 127.0.0.1")
    assert [message.rpartition(": ")[2] for message in said] == ["done", "refused"]
    assert gateway.key not in caplog.text


async def test_what_is_sent_cannot_write_lines_of_its_own_into_the_log(
    start_gateway: StartGateway,
    tmp_path: Path,
    engine: MockEngine,
    caplog: pytest.LogCaptureFixture,
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    forged = await ask(gateway, "POST", "/deployments/x%0aWARNING%20forged/drain")
    long = await ask(gateway, "POST", "/deployments", entry("y" * 100_000, engine))
    assert (forged.status_code, long.status_code) == (400, 400)
    said = [record.getMessage() for record in caplog.records if "fleet_api" in record.name]
    assert len(said) == 2
    assert all("\n" not in line and len(line) < 1500 for line in said)


async def test_a_move_to_nowhere_is_refused(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    refused = await ask(gateway, "POST", "/deployments/one/move")
    assert refused.status_code == 400
    assert "base_url, datacenter, slots" in refused.text


@pytest.mark.parametrize(
    "body",
    [
        {"id": []}, {"id": {}}, {"id": None}, {"id": 1e300}, {"id": "x", "slots": 10**18},
        {"id": "x", "slots": 1e308}, {"id": "x", "mock": [[[]]]}, {"id": ["a", {"b": []}]},
        {"id": "one", "force": False}, {"id": "x" * 5000}, {"id": "\x00"}, {"\n": 1},
    ],
)  # fmt: skip
async def test_whatever_is_sent_is_refused_with_a_reason(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, body: dict[str, Any]
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    whole = {**entry("new", engine), **body}
    for path, sent in (("", body), ("", whole), ("/one/move", body), ("/%00/drain", {})):
        answer = await ask(gateway, "POST", f"/deployments{path}", sent)
        assert answer.status_code == 400, (path, sent, answer.text)
        assert answer.json()["error"]["message"]
    assert await states(gateway) == {"one": "serving"}


async def test_bodies_that_are_nested_deep_are_refused(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    for depth in (50, 500, 900, 990, 5000):
        answer = await gateway.client.post(
            f"{gateway.control_url}/fleet/deployments",
            content='{"id": ' + "[" * depth + "]" * depth + "}",
            headers=gateway.authorization(),
        )
        assert answer.status_code == 400, depth


@pytest.mark.parametrize("deployments", ["", "deployments = []", "deployments = [{}, 7]"])
async def test_an_edit_over_a_file_that_lacks_its_deployments_is_refused(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, deployments: str
):
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    fleet.path.write_text(f'{deployments}\nmodels = []\n[[datacenters]]\nid = "east"\n')
    for verb in ("drain", "resume", "move"):
        body = {"slots": 2} if verb == "move" else {"force": True}
        answer = await ask(gateway, "POST", f"/deployments/one/{verb}", body)
        assert answer.status_code == 400, answer.text
    added = await ask(gateway, "POST", "/deployments", entry("two", engine))
    assert added.status_code == 400
    assert (await ask(gateway, "DELETE", "/deployments/one", {"force": True})).status_code == 400
    assert await states(gateway) == {"one": "serving"}
