"""The catalogue in memory."""

from __future__ import annotations

import pytest

from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.domain.models import Deployment, Model


def model(name: str) -> Model:
    return Model(name, "r1", created=1, context_tokens=10, max_output_tokens=10)


def deployment(name: str, serves: str) -> Deployment:
    return Deployment(name, serves, "dc1", "http://127.0.0.1:1/v1", "vllm", 1, serves)


def test_models_keep_their_order_and_are_found_by_id():
    catalog = MemoryCatalog([model("b/b"), model("a/a")], [])
    assert [found.id for found in catalog.models()] == ["b/b", "a/a"]
    assert catalog.find("a/a") == model("a/a")
    assert catalog.find("c/c") is None


def test_deployments_are_those_of_the_model():
    catalog = MemoryCatalog(
        [model("a/a"), model("b/b")], [deployment("one", "a/a"), deployment("two", "b/b")]
    )
    assert [found.id for found in catalog.deployments("a/a")] == ["one"]
    assert catalog.deployments("c/c") == []


def test_a_deployment_of_an_unknown_model_is_refused():
    with pytest.raises(ValueError, match="unknown model: c/c"):
        MemoryCatalog([model("a/a")], [deployment("one", "c/c")])


def test_two_deployments_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two deployments are named one"):
        MemoryCatalog([model("a/a")], [deployment("one", "a/a"), deployment("one", "a/a")])
