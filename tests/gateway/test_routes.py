"""Every route is in the OpenAPI document, and every one that generates honours a key's scope."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from prime_inference.compose import BillingOptions
from prime_inference.domain.keys import ENDPOINTS
from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.account_api import AccountApi
from prime_inference.gateway.app import BASE, Gateway
from prime_inference.gateway.openapi import openapi_document

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway

OPEN = {"openapi.json", "models", "key", "generation", "usage", "billing/wallet"}
"""What every key may ask, whatever it is limited to."""


@pytest_asyncio.fixture
async def gateway(start_gateway: StartGateway, engine: MockEngine) -> RunningGateway:
    return await start_gateway(engine, billing=BillingOptions("sqlite"))


def documented(accounts: bool) -> set[tuple[str, str]]:
    paths = openapi_document(accounts=accounts)["paths"]
    return {
        (method.upper(), f"{BASE}{path}") for path, methods in paths.items() for method in methods
    }


@pytest.mark.parametrize("accounts", [False, True])
def test_the_document_has_every_route_and_no_other(accounts: bool):
    nothing: Any = None
    account = AccountApi(nothing, nothing, nothing, nothing)
    more = account.routes(BASE) if accounts else {}
    gateway = Gateway(nothing, nothing, nothing, nothing, nothing, nothing, more)
    assert gateway.operations == documented(accounts)


def scoped_endpoint(path: str) -> str | None:
    """The name by which a key is limited to a path; None for those open to every key."""
    path = path.removeprefix(f"{BASE}/")
    names = [name for name in ENDPOINTS if path == name or path.startswith(f"{name}/")]
    assert names or any(path == name or path.startswith(f"{name}/") for name in OPEN)
    return names[0] if names else None


async def test_every_route_that_generates_or_shows_what_was_generated_honours_the_scope(
    gateway: RunningGateway,
):
    keys = {}
    for name in ENDPOINTS:
        fields = {"tenant": "local", "name": name, "endpoints": [name]}
        keys[name] = (await gateway.admin("POST", "keys", fields))["key"]
    seen = set()
    for method, path in sorted(documented(accounts=True)):
        endpoint = scoped_endpoint(path)
        seen.add(endpoint)
        for name, key in keys.items():
            asked = path.replace("{id}", "resp_none").replace("{author}/{slug}", MODEL)
            response = await gateway.client.request(
                method,
                gateway.url(asked.removeprefix(BASE)),
                content=b"{}" if method == "POST" else b"",
                headers={"authorization": f"Bearer {key}"},
            )
            refused = endpoint not in (None, name)
            assert (response.status_code == 403) is refused, (method, path, name, response.text)
            if refused:
                assert name in response.json()["error"]["message"]
    assert seen == {None, *ENDPOINTS}


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens", "/responses"])
async def test_a_key_for_one_model_neither_asks_nor_counts_for_another(
    gateway: RunningGateway, path: str
):
    fields = {"tenant": "local", "name": "k", "models": ["acme/vision-2"]}
    made = await gateway.admin("POST", "keys", fields)
    own = replace(gateway, key=made["key"])
    body: dict[str, Any] = {"model": MODEL, "input": "Hi"}
    if path != "/responses":
        body = {"model": MODEL, "messages": MESSAGES}
    if path == "/messages":
        body["max_tokens"] = 1
    assert (await own.post(path, body)).status_code == 403
    assert (await gateway.post(path, body)).status_code == 200


async def test_what_a_key_is_told_of_its_account_is_as_the_document_says(gateway: RunningGateway):
    price = {"model": MODEL, "prompt": "1", "completion": "2"}
    await gateway.admin("POST", "prices", price)
    await gateway.admin("POST", "limits", {"kind": "budget_daily", "most_usd": "9"})
    paid = {"tenant": "local", "amount_usd": "10", "reference": "invoice-1"}
    await gateway.admin("POST", "credits", paid)
    generation = (await gateway.chat()).headers["x-generation-id"]
    document = (await gateway.get("/openapi.json")).json()
    for path, query in {
        "/key": "",
        "/generation": f"?id={generation}",
        "/usage": "?group_by=key,model",
        "/billing/wallet": "?limit=5&offset=0",
    }.items():
        answer = await gateway.get(path + query)
        assert answer.status_code == 200, answer.text
        told = document["paths"][path]["get"]["responses"]["200"]["content"]
        schema = {**told["application/json"]["schema"], "components": document["components"]}
        jsonschema.validate(answer.json(), schema)
        refused = await gateway.client.get(gateway.url(path))
        assert refused.status_code == 401


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/generation", "id"),
        ("/usage?group_by=cost", "group_by"),
        ("/usage?from=tomorrow", "from"),
        ("/billing/wallet?offset=-1", "offset"),
        (f"/billing/wallet?offset={10**30}", "offset"),
    ],
)
async def test_what_a_query_gets_wrong_is_named(gateway: RunningGateway, path: str, param: str):
    refused = await gateway.get(path)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
