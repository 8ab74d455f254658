"""Reserved capacity at the gateway: made, seen, paid, used, and taken back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest_asyncio

from prime_inference.compose import BillingOptions
from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .running import MODEL, RunningGateway

PRICE = {"model": MODEL, "prompt": "1", "cached_prompt": "0.1", "completion": "2"}


@pytest_asyncio.fixture
async def gateway(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
) -> RunningGateway:
    """Two deployments of four slots each."""
    gateway = await start_gateway(engine, spare, slots=4, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    return gateway


async def team(gateway: RunningGateway, slug: str = "acme") -> tuple[str, RunningGateway]:
    """A team, and the gateway as one with a key of it sees it."""
    made = await gateway.admin("POST", "teams", {"name": slug, "slug": slug})
    key = await gateway.admin("POST", "keys", {"tenant": made["teamId"], "name": "k"})
    return made["teamId"], replace(gateway, key=key["key"])


async def reserve(gateway: RunningGateway, tenant: str, slots: int, **fields: Any) -> Any:
    wanted = {"tenant": tenant, "model": MODEL, "slots": slots, "price_usd": "12.5", **fields}
    return await gateway.admin("POST", "reservations", wanted)


# --- made, seen, ended


async def test_a_reservation_is_made_shown_listed_and_ended(gateway: RunningGateway):
    tenant, own = await team(gateway)
    made = await reserve(gateway, tenant, 3, spill=False, token_discount_percent=25)
    assert made["state"] == "active"
    assert made["on"] == {"engine-0": 2, "engine-1": 1}
    assert (made["price_usd"], made["period"], made["spill"]) == ("12.50", "hour", False)
    assert await gateway.admin("GET", f"reservations/{made['id']}") == made
    listed = await gateway.admin("GET", f"reservations?tenant={tenant}")
    assert listed == {"reservations": [made], "total_count": 1}
    assert (await own.get("/reservations")).json() == listed
    assert (await gateway.get("/reservations")).json()["reservations"] == []  # another tenant's
    ended = await gateway.admin("POST", f"reservations/{made['id']}/end")
    assert (ended["state"], ended["on"]) == ("ended", {})
    again = await gateway.admin_response("POST", f"reservations/{made['id']}/end")
    assert again.status_code == 400
    entries = (await gateway.admin("GET", "audit"))["entries"]
    assert [each["action"] for each in entries][-2:] == ["reservation.create", "reservation.end"]


async def test_more_than_the_fleet_has_cannot_be_reserved(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    await reserve(gateway, tenant, 5)
    wanted = {"tenant": tenant, "model": MODEL, "slots": 4, "price_usd": "1"}
    refused = await gateway.admin_response("POST", "reservations", wanted)
    assert refused.status_code == 400
    assert refused.json()["error"]["metadata"]["free"] == 3
    later = {**wanted, "from": "2100-01-01T00:00:00Z", "to": "2100-02-01T00:00:00Z"}
    assert (await gateway.admin_response("POST", "reservations", later)).status_code == 400
    there = {**wanted, "slots": 3, "datacenters": ["dc-0"]}
    assert (await gateway.admin_response("POST", "reservations", there)).status_code == 400


async def test_what_makes_no_sense_is_refused_by_name(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    wanted = {"tenant": tenant, "model": MODEL, "slots": 1, "price_usd": "1"}
    for wrong, named in (
        ({"from": "2001-01-01"}, "from"),
        ({"from": "soon"}, "from"),
        ({"to": "2001-01-01"}, "to"),
        ({"slots": 0}, "slots"),
        ({"price_usd": "-1"}, "negative"),
        ({"period": "week"}, "period"),
        ({"model": "nobody/knows"}, "slots"),
    ):
        refused = await gateway.admin_response("POST", "reservations", {**wanted, **wrong})
        assert refused.status_code == 400, wrong
        assert named in refused.text
    missing = await gateway.admin_response("GET", "reservations/res_0")
    assert missing.status_code == 404
    nobody = await gateway.admin_response("POST", "reservations", {**wanted, "tenant": "nobody"})
    assert nobody.status_code == 404


async def test_a_scheduled_reservation_has_no_slots_and_costs_nothing(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    made = await reserve(gateway, tenant, 8, **{"from": "2100-01-01T00:00:00Z"})
    assert (made["state"], made["on"]) == ("scheduled", {})
    ended = await gateway.admin("POST", f"reservations/{made['id']}/end")
    assert ended["state"] == "ended"
    await reserve(gateway, tenant, 8)
