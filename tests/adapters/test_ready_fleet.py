"""A fleet that follows the list of ready deployments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import pytest
from msgspec.structs import replace

from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.domain.fleet import Fleet, FleetInvalid
from prime_inference.fleet.ready import (
    ReadyDeployment,
    parse_list,
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
    assert parse_list(ready_document([A, B], ["c"])).down == ["c"]


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


@pytest.mark.parametrize("content", [b"", b"{}", b'{"deployments": {}}'])
def test_a_broken_file_changes_nothing(tmp_path, content, caplog):
    write_ready(tmp_path / "list", [A])
    ready = fleet_of(tmp_path / "list")
    (tmp_path / "list").write_bytes(content)
    assert not ready.read()
    assert ids(ready) == ["a"]
    assert "cannot be read" in caplog.text
    assert "cannot be read" in ready.refused["list"]


def broken(*entries: object) -> bytes:
    sound = [msgspec.to_builtins(B)]
    return msgspec.json.encode({"deployments": [*entries, *sound], "down": []})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_output_tokens", -1),
        ("context_tokens", 0),
        ("slots", 0),
        ("slots", 10**9),
        ("slots", "many"),
        ("id", "a b"),
        ("id", ""),
        ("model", ""),
        ("model", "x\ny"),
        ("revision", ""),
        ("revision", "r\x1b[2J"),
        ("datacenter", "\n"),
        ("base_url", "https://10.0.0.1/v1"),
        ("base_url", "http://h:99999/v1"),
        ("routes", 7),
        ("another", 1),
    ],
)
def test_a_bad_entry_costs_only_itself_and_is_told(tmp_path, field, value, caplog):
    write_ready(tmp_path / "list", [A, B])
    ready = fleet_of(tmp_path / "list")
    assert ready.refused == {}
    entry = msgspec.to_builtins(A) | {field: value}
    (tmp_path / "list").write_bytes(broken(entry))
    assert ready.read()
    assert ids(ready) == ["b"]
    (name,) = ready.refused
    assert name in caplog.text
    assert name == "a" or field == "id"
    write_ready(tmp_path / "list", [A, B])
    assert ready.read()
    assert (ids(ready), ready.refused) == (["a", "b"], {})


@pytest.mark.parametrize("entry", [None, [], 7, {}, {"id": 7}])
def test_an_entry_without_a_name_is_told_by_its_place(tmp_path, entry):
    (tmp_path / "list").write_bytes(broken(entry))
    assert list(fleet_of(tmp_path / "list").refused) == ["entry 1"]


def test_of_two_entries_with_one_id_the_first_is_served(tmp_path):
    (tmp_path / "list").write_bytes(broken(msgspec.to_builtins(replace(B, slots=9))))
    ready = fleet_of(tmp_path / "list")
    assert [one.slots for one in ready.deployments] == [9]
    assert ready.refused == {"b": "another entry has its id"}


def test_who_writes_the_list_leaves_out_what_no_gateway_would_take(tmp_path, caplog):
    write_ready(tmp_path / "list", [replace(A, max_output_tokens=-1), B])
    assert [one.id for one in parse_list((tmp_path / "list").read_bytes()).deployments] == ["b"]
    assert parse_list((tmp_path / "list").read_bytes()).refused == {}
    assert "a is not listed" in caplog.text


def test_each_deployment_has_the_revision_that_it_serves(tmp_path):
    write_ready(tmp_path / "list", [A, replace(B, revision="r2")])
    by_id = {one.id: one.revision for one in fleet_of(tmp_path / "list").deployments}
    assert by_id == {"a": "bytes", "b": "r2"}


def test_a_model_follows_its_roll_out(tmp_path):
    """Both revisions while both serve: the least context is what all of them can take."""
    write_ready(tmp_path / "list", [A])
    ready = fleet_of(tmp_path / "list")
    created = ready.models[0].created
    new = replace(B, revision="r2", context_tokens=40, max_output_tokens=60, slots=9)
    write_ready(tmp_path / "list", [A, new])
    assert ready.read()
    (model,) = ready.models
    assert (model.revision, model.context_tokens, model.max_output_tokens) == ("r2", 40, 50)
    write_ready(tmp_path / "list", [new])
    assert ready.read()
    (model,) = ready.models
    assert (model.revision, model.context_tokens, model.max_output_tokens) == ("r2", 40, 60)
    assert model.created == created


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


async def test_what_cannot_be_served_now_costs_only_itself_and_is_tried_again(tmp_path):
    """A deployment of before with its id still drains, say."""
    write_ready(tmp_path / "list", [A])
    ready = fleet_of(tmp_path / "list")
    drains = ["a"]
    served: asyncio.Queue[list[str]] = asyncio.Queue()
    told: list[Mapping[str, str]] = []

    def serve(fleet: Fleet) -> None:
        names = [one.id for one in fleet.deployments]
        for name in drains:
            if name in names:
                raise FleetInvalid("it drains", name)
        served.put_nowait(names)

    following = asyncio.create_task(ready.follow(serve, refuse=lambda names: told.append(names)))
    write_ready(tmp_path / "list", [replace(A, model="mock/other"), B])
    assert await asyncio.wait_for(served.get(), 10) == ["b"]
    assert await asyncio.wait_for(served.get(), 10) == ["b"]
    assert told[-1] == {"a": "it drains"}
    drains.clear()
    while await asyncio.wait_for(served.get(), 10) != ["a", "b"]:
        pass
    following.cancel()
