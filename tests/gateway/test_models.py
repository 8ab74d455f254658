"""The catalogue: public, complete, and there while the engines are not."""

from __future__ import annotations

import pytest

from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .running import MODEL, OTHER_MODEL, RunningGateway


async def test_every_model_is_listed_in_openais_shape(gateway: RunningGateway):
    document = (await gateway.get("/models")).json()
    assert document["object"] == "list"
    assert [model["id"] for model in document["data"]] == [MODEL, OTHER_MODEL]
    for model in document["data"]:
        assert model["object"] == "model"
        assert model["owned_by"] == "acme"
        assert isinstance(model["created"], int)


async def test_a_model_is_shown_as_it_is_listed(gateway: RunningGateway):
    (listed, _) = (await gateway.get("/models")).json()["data"]
    assert (await gateway.get(f"/models/{MODEL}")).json() == listed
    assert listed["context_length"] == listed["specs"]["context_window"] == 4096
    assert {"temperature", "tools", "max_tokens", "stream"} <= set(listed["supported_parameters"])
    assert "prediction" not in listed["supported_parameters"]


async def test_prices_are_told_per_token_and_per_million(gateway: RunningGateway):
    pricing = (await gateway.get(f"/models/{MODEL}")).json()["pricing"]
    assert isinstance(pricing["prompt"], str)
    assert isinstance(pricing["input_usd_per_mtok"], float)


async def test_what_a_model_takes_is_told(gateway: RunningGateway):
    for name, inputs in ((MODEL, ["text"]), (OTHER_MODEL, ["image", "text"])):
        architecture = (await gateway.get(f"/models/{name}")).json()["architecture"]
        assert architecture["input_modalities"] == inputs


@pytest.mark.parametrize("path", ["", "/endpoints"])
async def test_a_model_that_is_not_there_is_told_the_nearest(gateway: RunningGateway, path: str):
    response = await gateway.get(f"/models/acme/eco-1{path}")
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["code"] == "model_not_found"
    assert f"Did you mean {MODEL}" in error["message"]


@pytest.mark.parametrize("path", ["/models", f"/models/{MODEL}", f"/models/{MODEL}/endpoints"])
async def test_no_key_is_needed_but_a_wrong_one_is_told(gateway: RunningGateway, path: str):
    url = gateway.url(path)
    assert (await gateway.client.get(url)).status_code == 200
    wrong = {"authorization": "Bearer pi_live_wrong"}
    assert (await gateway.client.get(url, headers=wrong)).status_code == 401


async def test_models_are_listed_while_an_engine_is_down(
    start_gateway: StartGateway, engine: MockEngine
):
    """vllm-project/router#135: the list was a 500 when one worker was down."""
    gateway = await start_gateway("http://127.0.0.1:1/v1", engine)
    assert (await gateway.chat()).status_code == 200
    for path in ("/models", f"/models/{MODEL}", f"/models/{MODEL}/endpoints"):
        assert (await gateway.get(path)).status_code == 200


async def test_each_deployment_is_an_endpoint_with_what_was_seen_of_it(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-500")
    await gateway.chat()  # tried on the first, served by the second
    await gateway.generations(1)
    document = (await gateway.get(f"/models/{MODEL}/endpoints")).json()["data"]
    assert document["id"] == MODEL
    first, second = document["endpoints"]
    assert (first["tag"], second["tag"]) == ("dc-0", "dc-1")
    assert (first["uptime_last_5m"], second["uptime_last_5m"]) == (0.0, 100.0)
    assert first["latency_last_30m"] is None


async def test_no_endpoint_tells_an_address_of_ours(gateway: RunningGateway, engine: MockEngine):
    text = (await gateway.get(f"/models/{MODEL}/endpoints")).text
    assert engine.base_url not in text
    assert "127.0.0.1" not in text
