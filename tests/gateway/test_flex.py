"""Requests that ask to be served after everybody else, and pay less for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import pytest_asyncio

from prime_inference.cli.status import show
from prime_inference.cli.terminal import Terminal
from prime_inference.compose import BillingOptions
from prime_inference.domain.money import usd_text
from prime_inference.engines.mock import MockEngine, expected_usage

from .conftest import StartGateway
from .running import MESSAGES, MODEL, OTHER_MODEL, RunningGateway, eventually

PRICE = {"model": MODEL, "prompt": "1", "cached_prompt": "0.1", "completion": "2"}
HALF = {**PRICE, "batch_discount_percent": 50}
REQUESTS: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": MESSAGES, "max_tokens": 11},
    "/completions": {"prompt": "Tell me about a river", "max_tokens": 11},
    "/responses": {"input": "Tell me about a river", "max_output_tokens": 11},
}
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest_asyncio.fixture
async def gateway(start_gateway: StartGateway, engine: MockEngine) -> RunningGateway:
    gateway = await start_gateway(engine, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", HALF)
    return gateway


async def team(gateway: RunningGateway) -> tuple[str, RunningGateway]:
    """A team, and the gateway as one with a key of it sees it."""
    made = await gateway.admin("POST", "teams", {"name": "acme", "slug": "acme"})
    key = await gateway.admin("POST", "keys", {"tenant": made["teamId"], "name": "k"})
    return made["teamId"], replace(gateway, key=key["key"])


async def told(gateway: RunningGateway, generation: str) -> dict[str, Any]:
    return dict((await gateway.get(f"/generation?id={generation}")).json()["data"])


async def usage_when(
    gateway: RunningGateway, holds: Callable[[dict[str, Any]], bool], tenant: str
) -> dict[str, Any]:
    """Usage by pool, once it is as expected: what is shipped takes its time."""
    async with asyncio.timeout(10):
        while True:
            report = await gateway.admin("GET", f"usage?group_by=pool&tenant={tenant}")
            rows = {row["pool"]: row for row in report["data"]}
            if holds(rows):
                return rows
            await asyncio.sleep(0.02)


async def test_what_flex_writes_is_no_output_of_a_reservation(gateway: RunningGateway):
    assert (await gateway.chat(service_tier="flex")).status_code == 200
    assert await gateway.metric("prime_generations_total") == 1  # it is counted
    assert await gateway.metric("prime_reserved_output_tokens_total") == 0


@WAYS
@pytest.mark.parametrize("path", REQUESTS)
async def test_a_flex_request_says_so_everywhere_and_costs_half(
    gateway: RunningGateway, engine: MockEngine, path: str, stream: bool
):
    body = {"model": MODEL, "service_tier": "flex", "stream": stream, **REQUESTS[path]}
    if stream and path != "/responses":
        body["stream_options"] = {"include_usage": True}
    if stream:
        answer = await gateway.stream(**body, path=path)
        last = answer.chunks[-1]
        tiers = {each.get("response", each).get("service_tier", "flex") for each in answer.chunks}
        usage = last.get("response", last)["usage"]
        if path != "/responses":
            assert all(chunk["service_tier"] == "flex" for chunk in answer.chunks)
        headers = answer.headers
    else:
        whole = await gateway.post(path, body)
        tiers, usage, headers = {whole.json()["service_tier"]}, whole.json()["usage"], whole.headers
    assert tiers == {"flex"}
    assert headers["x-prime-pool"] == "flex"
    prompt, completion = (
        usage.get("prompt_tokens", usage.get("input_tokens")),
        usage.get("completion_tokens", usage.get("output_tokens")),
    )
    cost = Decimal(prompt * 1 + completion * 2) / 2_000_000
    assert usage["cost"] == float(cost)
    event = await told(gateway, headers["x-generation-id"])
    assert (event["service_tier"], event["pool"]) == ("flex", "flex")
    assert Decimal(event["total_cost_usd"]) == cost
    assert b"service_tier" not in engine.requests[-1].body


async def test_what_others_ask_for_is_told_as_default_or_not_at_all(gateway: RunningGateway):
    for asked in ("auto", "default"):
        answer = await gateway.chat(service_tier=asked, max_tokens=1)
        assert answer.json()["service_tier"] == "default"
        assert answer.headers["x-prime-pool"] == "serverless"
    plain = await gateway.chat(max_tokens=1)
    assert "service_tier" not in plain.json()
    event = await told(gateway, plain.headers["x-generation-id"])
    assert (event["service_tier"], event["pool"]) == ("default", "serverless")
    response = await gateway.post("/responses", {"model": MODEL, "input": "Hi"})
    assert response.json()["service_tier"] == "default"


async def test_the_bill_tells_flex_apart_and_the_books_agree(gateway: RunningGateway):
    tenant, own = await team(gateway)
    for fields in ({}, {"service_tier": "flex"}, {"service_tier": "flex"}):
        assert (await own.chat(max_tokens=11, **fields)).status_code == 200
    prompt, completion = expected_usage(MESSAGES, 11)
    nanodollars = (prompt * 1 + completion * 2) * 1000
    costs = {"serverless": usd_text(nanodollars), "flex": usd_text(nanodollars)}
    rows = await usage_when(
        gateway, lambda rows: sum(row["requests"] for row in rows.values()) == 3, tenant
    )
    assert {pool: row["requests"] for pool, row in rows.items()} == {"serverless": 1, "flex": 2}
    assert {pool: row["cost_usd"] for pool, row in rows.items()} == costs
    month = datetime.now(UTC).strftime("%Y-%m")
    bill = await gateway.admin("GET", f"statements/{tenant}/{month}")
    assert {line["pool"]: line["cost_usd"] for line in bill["lines"]} == costs
    assert bill["usage_usd"] == usd_text(2 * nanodollars)
    assert (await gateway.admin("GET", "ledger/verify"))["sound"]


async def test_half_the_budget_is_enough_to_hold_a_flex_request(gateway: RunningGateway):
    tenant, own = await team(gateway)
    # a thousand completion tokens cost $0.002 at the full price
    limit = {"kind": "budget_total", "most_usd": "0.0015", "tenant": tenant}
    await gateway.admin("POST", "limits", limit)
    refused = await own.chat(max_tokens=1000)
    assert (refused.status_code, refused.headers["x-ratelimit-remaining"]) == (402, "0.0015")
    assert (await own.chat(max_tokens=1000, service_tier="flex")).status_code == 200


async def test_flex_spends_a_budget_at_its_own_price_until_it_is_hit(gateway: RunningGateway):
    tenant, own = await team(gateway)
    limit = {"kind": "budget_total", "most_usd": "0.0003", "tenant": tenant}
    await gateway.admin("POST", "limits", limit)
    prompt, completion = expected_usage(MESSAGES, 11)
    cost, left = Decimal(prompt + completion * 2) / 2_000_000, Decimal("0.0003")
    async with asyncio.timeout(10):
        while True:
            answer = await own.chat(max_tokens=11, service_tier="flex")
            if answer.status_code == 200:
                assert answer.json()["usage"]["cost"] == float(cost)
                left -= cost
            elif Decimal(answer.headers["x-ratelimit-remaining"]) == left:
                break  # else one that was answered is still held
    assert (answer.status_code, answer.json()["error"]["code"]) == (402, "budget_exceeded")
    assert (await own.chat(max_tokens=11)).status_code == 402
    rows = await usage_when(gateway, lambda rows: bool(rows), tenant)
    assert set(rows) == {"flex"}  # what was refused is not there


@pytest.mark.parametrize("discount", [{}, {"batch_discount_percent": 0}])
async def test_without_a_discount_flex_costs_and_holds_what_others_do(
    gateway: RunningGateway, discount: dict[str, Any]
):
    await gateway.admin("POST", "prices", {**PRICE, **discount, "confirm": True})
    tenant, own = await team(gateway)
    async with asyncio.timeout(10):
        while True:
            tiers = ("default", "flex")
            answers = [await own.chat(max_tokens=11, service_tier=tier) for tier in tiers]
            default, flex = (answer.json()["usage"]["cost"] for answer in answers)
            if default == flex:
                break
            await asyncio.sleep(0.05)  # the price is not known yet
    limit = {"kind": "budget_total", "most_usd": "0.0015", "tenant": tenant}
    await gateway.admin("POST", "limits", limit)
    refused = await own.chat(max_tokens=1000, service_tier="flex")
    assert refused.status_code == 402


async def test_flex_of_a_model_without_a_price_is_free_and_its_pool_is_flex(
    gateway: RunningGateway,
):
    answer = await gateway.chat(model=OTHER_MODEL, service_tier="flex")
    assert "cost" not in answer.json()["usage"]
    event = await told(gateway, answer.headers["x-generation-id"])
    assert (event["pool"], event["price_version"], event["total_cost_usd"]) == ("flex", 0, "0.00")


async def test_flex_that_finds_no_room_gives_back_what_it_held(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, slots=5, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", HALF)
    tenant, own = await team(gateway)
    for limit in (
        {"kind": "budget_total", "most_usd": "0.0005"},  # a request, but not half of one beside it
        {"kind": "concurrency", "most": 1},
    ):
        await gateway.admin("POST", "limits", {**limit, "tenant": tenant})
    engine.behave("slow-first-20s")
    held = [asyncio.ensure_future(gateway.chat(service_tier="flex")) for _ in range(4)]
    await eventually(lambda: len(engine.requests) == 4, 10)
    refused = await own.chat(max_tokens=11, service_tier="flex")
    assert refused.json()["error"]["code"] == "resource_unavailable"
    engine.behave("")
    answer = await own.chat(max_tokens=11)
    assert answer.status_code == 200, answer.text
    rows = await usage_when(gateway, lambda rows: bool(rows), tenant)
    assert {pool: row["requests"] for pool, row in rows.items()} == {"serverless": 1}
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_flex_has_four_fifths_at_most_and_is_told_when_to_come_again(
    start_gateway: StartGateway, engine: MockEngine, capsys: pytest.CaptureFixture[str]
):
    gateway = await start_gateway(engine, slots=5)
    engine.behave("slow-first-20s")
    held = [asyncio.ensure_future(gateway.chat(service_tier="flex")) for _ in range(4)]
    await eventually(lambda: len(engine.requests) == 4, 10)
    for stream in (False, True):
        refused = await gateway.chat(service_tier="flex", stream=stream)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "resource_unavailable"
        assert refused.json()["error"]["metadata"]["error_type"] == "provider_overloaded"
        assert int(refused.headers["retry-after"]) >= 1
    url, key = f"{gateway.control_url}/fleet", gateway.authorization()
    fleet = (await gateway.client.get(url, headers=key)).json()
    assert fleet["deployments"][0]["flex_in_flight"] == 4
    held.append(asyncio.ensure_future(gateway.chat()))
    await eventually(lambda: len(engine.requests) == 5, 10)
    fleet = (await gateway.client.get(url, headers=key)).json()
    show(fleet, Terminal(plain=True))
    assert "  5 (4 flex)  " in capsys.readouterr().out
    for one in fleet["deployments"]:
        del one["flex_in_flight"]  # as a gateway of an earlier release
    show(fleet, Terminal(plain=True))
    assert "flex" not in capsys.readouterr().out
    for each in held:
        each.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    counted = {"tier": "flex", "outcome": "refused", "code": "resource_unavailable"}
    await gateway.generations(7)
    assert await gateway.metric("prime_generations_total", **counted) == 2
    assert await gateway.metric("prime_generations_total", tier="default") == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_that_is_full_has_no_room_for_flex(
    start_gateway: StartGateway, engine: MockEngine, status: int
):
    gateway = await start_gateway(engine)
    engine.behave(f"status-{status}.retry-after-17")
    refused = await gateway.chat(service_tier="flex")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "17")
    assert refused.json()["error"]["code"] == "resource_unavailable"
    assert (await gateway.chat()).status_code == 503


@pytest.mark.parametrize("spill", [True, False])
async def test_flex_never_runs_on_the_slots_that_its_team_has_reserved(
    gateway: RunningGateway, spill: bool
):
    tenant, own = await team(gateway)
    wanted = {"tenant": tenant, "model": MODEL, "slots": 4, "price_usd": "12.5", "spill": spill}
    await gateway.admin("POST", "reservations", wanted)
    async with asyncio.timeout(10):
        while "reserved:" not in (await own.chat()).headers.get("x-prime-pool", ""):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    flex = await own.chat(service_tier="flex")
    assert flex.headers["x-prime-pool"] == "flex"
    assert flex.json()["usage"]["cost"] > 0
    assert (await own.chat()).json()["usage"]["cost"] == 0


async def test_limits_count_flex_requests_like_others(gateway: RunningGateway):
    tenant, own = await team(gateway)
    limit = {"kind": "requests_per_minute", "most": 2, "tenant": tenant}
    await gateway.admin("POST", "limits", limit)
    tiers = ("flex", "default", "flex", "default")
    answers = [await own.chat(service_tier=tier, max_tokens=1) for tier in tiers]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"


async def test_where_there_is_no_such_tier_it_is_refused_by_name(gateway: RunningGateway):
    tenant, own = await team(gateway)
    await gateway.admin(
        "POST", "limits", {"kind": "requests_per_minute", "most": 1, "tenant": tenant}
    )
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 9, "service_tier": "flex"}
    refused = await own.post("/messages", body)
    assert refused.status_code == 400
    assert "/chat/completions" in refused.json()["error"]["message"]
    body = {"model": MODEL, "input": "Once", "service_tier": "flex"}
    assert (await own.post("/embeddings", body)).json()["error"]["param"] == "service_tier"
    assert (await own.chat(service_tier="batch")).status_code == 400
    assert (await own.chat(service_tier="flex")).status_code == 200  # nothing was held before
    assert (await own.chat(service_tier="flex")).status_code == 429
