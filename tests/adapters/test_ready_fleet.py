"""A fleet that follows the list of ready deployments."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.domain.fleet import Fleet
from prime_inference.fleet.ready import (
    ReadyDeployment,
    parse_down,
    parse_ready,
    ready_document,
    write_ready,
)

A = ReadyDeployment(
    id="a",
    model="mock/tiny",
    revision="bytes",
    datacenter="dc-a",
    base_url="http://127.0.0.1:1/v1",
    slots=4,
    context_tokens=100,
    max_output_tokens=50,
)
B = replace(A, id="b", datacenter="dc-b", base_url="http://127.0.0.1:2/v1")
OTHER = replace(A, id="c", model="mock/other")


def fleet_of(path) -> ReadyFleet:
    ready = ReadyFleet(path, frozenset({"tools"}), lambda: 1_000.0)
    ready.read()
    return ready


def ids(ready, model="mock/tiny"):
    return sorted(one.id for one in ready.deployments if one.model == model)


def test_a_list_survives_being_written_and_read():
    assert parse_ready(ready_document([A, B], ["c"])) == [A, B]
    assert parse_down(ready_document([A, B], ["c"])) == ["c"]


def test_deployments_are_offered_as_the_file_lists_them(tmp_path):
    write_ready(tmp_path / "list", [A, OTHER])
    ready = fleet_of(tmp_path / "list")
    assert ids(ready) == ["a"]
    assert [model.id for model in list(ready.models)] == ["mock/tiny", "mock/other"]
    (deployment,) = (one for one in ready.deployments if one.model == "mock/tiny")
    assert (deployment.engine, deployment.slots, deployment.datacenter) == ("dynamo", 4, "dc-a")
    model = ready.models[0]
    assert (model.revision, model.context_tokens, model.max_output_tokens) == ("bytes", 100, 50)


def test_a_change_of_the_file_is_taken_over_and_what_stays_is_the_same_object(tmp_path):
    write_ready(tmp_path / "list", [A])
    ready = fleet_of(tmp_path / "list")
    (before,) = ready.deployments
    assert not ready.read()
    write_ready(tmp_path / "list", [B, A])
    assert ready.read()
    assert ids(ready) == ["a", "b"]
    assert before in ready.deployments
    assert any(one is before for one in ready.deployments)
    write_ready(tmp_path / "list", [B])
    assert ready.read()
    assert ids(ready) == ["b"]


def test_a_model_whose_deployments_are_all_said_to_be_down_keeps_the_last_ones(tmp_path):
    write_ready(tmp_path / "list", [A, B])
    ready = fleet_of(tmp_path / "list")
    write_ready(tmp_path / "list", [])
    assert ready.read()
    assert ids(ready) == ["a", "b"]
    assert ready.not_ready() == "no deployment is ready"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"deployments": [{"id": "x"}]}'])
def test_a_broken_file_changes_nothing(tmp_path, content, caplog):
    write_ready(tmp_path / "list", [A])
    ready = fleet_of(tmp_path / "list")
    (tmp_path / "list").write_bytes(content)
    assert not ready.read()
    assert ids(ready) == ["a"]
    assert "cannot be read" in caplog.text


def test_without_a_file_nothing_is_served_yet(tmp_path):
    ready = fleet_of(tmp_path / "list")
    assert list(ready.models) == []
    assert ready.not_ready() == "no deployment is ready"


async def test_changes_are_told_while_it_follows(tmp_path):
    write_ready(tmp_path / "list", [A])
    ready = fleet_of(tmp_path / "list")
    served: asyncio.Queue[Fleet] = asyncio.Queue()
    following = asyncio.create_task(ready.follow(served.put_nowait))
    write_ready(tmp_path / "list", [A, B])
    fleet = await asyncio.wait_for(served.get(), 10)
    assert [one.id for one in fleet.deployments] == ["a", "b"]
    assert fleet.datacenters == ("dc-a", "dc-b")
    following.cancel()


async def test_who_is_said_to_be_down_is_told_after_the_fleet_without_it(tmp_path):
    write_ready(tmp_path / "list", [A, B])
    ready = fleet_of(tmp_path / "list")
    told: asyncio.Queue[object] = asyncio.Queue()
    following = asyncio.create_task(ready.follow(told.put_nowait, told.put_nowait))
    write_ready(tmp_path / "list", [B], ["a"])
    fleet = await asyncio.wait_for(told.get(), 10)
    assert isinstance(fleet, Fleet)
    assert [one.id for one in fleet.deployments] == ["b"]
    assert await asyncio.wait_for(told.get(), 10) == {"a"}
    following.cancel()
