"""A catalogue that follows the list of ready deployments."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from prime_inference.adapters.files.ready_catalog import ReadyCatalog
from prime_inference.fleet.ready import ReadyDeployment, parse_ready, ready_document, write_ready

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


def catalog_of(path) -> ReadyCatalog:
    catalog = ReadyCatalog(path, frozenset({"tools"}), lambda: 1_000.0)
    catalog.read()
    return catalog


def ids(catalog, model="mock/tiny"):
    return sorted(one.id for one in catalog.deployments(model))


def test_a_list_survives_being_written_and_read():
    assert parse_ready(ready_document([A, B])) == [A, B]


def test_deployments_are_offered_as_the_file_lists_them(tmp_path):
    write_ready(tmp_path / "list", [A, OTHER])
    catalog = catalog_of(tmp_path / "list")
    assert ids(catalog) == ["a"]
    assert [model.id for model in catalog.models()] == ["mock/tiny", "mock/other"]
    (deployment,) = catalog.deployments("mock/tiny")
    assert (deployment.engine, deployment.slots, deployment.datacenter) == ("dynamo", 4, "dc-a")
    model = catalog.find("mock/tiny")
    assert model is not None
    assert (model.revision, model.context_tokens, model.max_output_tokens) == ("bytes", 100, 50)


def test_a_change_of_the_file_is_taken_over_and_what_stays_is_the_same_object(tmp_path):
    write_ready(tmp_path / "list", [A])
    catalog = catalog_of(tmp_path / "list")
    (before,) = catalog.deployments("mock/tiny")
    assert not catalog.read()
    write_ready(tmp_path / "list", [B, A])
    assert catalog.read()
    assert ids(catalog) == ["a", "b"]
    assert before in catalog.deployments("mock/tiny")
    assert any(one is before for one in catalog.deployments("mock/tiny"))
    write_ready(tmp_path / "list", [B])
    assert catalog.read()
    assert ids(catalog) == ["b"]


def test_a_model_whose_deployments_are_all_said_to_be_down_keeps_the_last_ones(tmp_path):
    write_ready(tmp_path / "list", [A, B])
    catalog = catalog_of(tmp_path / "list")
    write_ready(tmp_path / "list", [])
    assert catalog.read()
    assert ids(catalog) == ["a", "b"]
    assert catalog.not_ready() == "no deployment is ready"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"deployments": [{"id": "x"}]}'])
def test_a_broken_file_changes_nothing(tmp_path, content, caplog):
    write_ready(tmp_path / "list", [A])
    catalog = catalog_of(tmp_path / "list")
    (tmp_path / "list").write_bytes(content)
    assert not catalog.read()
    assert ids(catalog) == ["a"]
    assert "cannot be read" in caplog.text


def test_without_a_file_nothing_is_served_yet(tmp_path):
    catalog = catalog_of(tmp_path / "list")
    assert catalog.models() == []
    assert catalog.not_ready() == "no deployment is ready"


async def test_changes_are_told_while_it_follows(tmp_path):
    write_ready(tmp_path / "list", [A])
    catalog = catalog_of(tmp_path / "list")
    changed = asyncio.Event()
    following = asyncio.create_task(catalog.follow(changed.set))
    write_ready(tmp_path / "list", [A, B])
    await asyncio.wait_for(changed.wait(), 10)
    assert ids(catalog) == ["a", "b"]
    following.cancel()
