"""A gateway that bills: costs, teams, budgets and keys, through its own ports only."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prime_inference.billing import outbox_lag
from prime_inference.compose import BillingOptions
from prime_inference.engines.mock import MockEngine, expected_usage
from prime_inference.gateway.billing import most_tokens
from prime_inference.gateway.clocks import ClockLimits
from prime_inference.gateway.operations import chat_operation
from prime_inference.wire.openai.chat_request import (
    ChatRequest,
    ImagePart,
    ImageUrl,
    TextPart,
    UserMessage,
)

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, chat, models
from .scripted_engine import DONE, STREAM_HEAD, ScriptedEngine, answer, delta, event

SHORT = ClockLimits(connect=1, first_token=0.2, idle=0.2, tail=0.2, total=0.5)
WHOLE = {
    "choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
PRICE = {"model": MODEL, "prompt": "1", "cached_prompt": "0.1", "completion": "2"}


@pytest_asyncio.fixture
async def gateway(start_gateway: StartGateway, engine: MockEngine) -> RunningGateway:
    gateway = await start_gateway(engine, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    return gateway


async def as_key(gateway: RunningGateway, tenant: str = "local", **fields: Any) -> RunningGateway:
    """The gateway as somebody with a new key of that tenant sees it."""
    made = await gateway.admin("POST", "keys", {"tenant": tenant, "name": "k", **fields})
    return replace(gateway, key=made["key"])


async def team(gateway: RunningGateway, slug: str = "acme") -> str:
    made = await gateway.admin("POST", "teams", {"name": slug, "slug": slug})
    return str(made["teamId"])


async def shipped(gateway: RunningGateway, requests: int, **query: str) -> dict[str, Any]:
    """Usage by model once the ledger has that many requests."""
    text = "&".join(f"{name}={value}" for name, value in query.items())
    async with asyncio.timeout(5):
        while True:
            report = await gateway.admin("GET", f"usage?group_by=model&{text}")
            rows = report["data"]
            if sum(row["requests"] for row in rows) >= requests:
                assert sum(row["requests"] for row in rows) == requests
                return dict(rows[0])
            await asyncio.sleep(0.02)


def dollars(max_tokens: int) -> Decimal:
    prompt, completion = expected_usage(MESSAGES, max_tokens)
    return Decimal(prompt * 1 + completion * 2) / 1_000_000


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_tells_its_cost_and_the_books_agree(gateway: RunningGateway, stream: bool):
    if stream:
        streamed = await gateway.stream(max_tokens=11, stream_options={"include_usage": True})
        usage = streamed.chunks[-1]["usage"]
        generation = streamed.headers["x-generation-id"]
    else:
        response = await gateway.chat(max_tokens=11)
        usage, generation = response.json()["usage"], response.headers["x-generation-id"]
    assert usage["cost"] == float(dollars(11))
    told = (await gateway.get(f"/generation?id={generation}")).json()["data"]
    assert Decimal(told["total_cost_usd"]) == dollars(11)
    assert (told["outcome"], told["streamed"], told["price_version"]) == ("complete", stream, 1)
    row = await shipped(gateway, 1)
    assert Decimal(row["cost_usd"]) == dollars(11)
    wallet = await gateway.admin("GET", "wallet/local")
    assert Decimal(wallet["balance_usd_text"]) == -dollars(11)
    assert (await gateway.admin("GET", "ledger/verify"))["sound"]


@pytest.mark.parametrize("dialect", ["responses", "messages"])
async def test_a_dialect_is_an_endpoint_of_its_own_for_keys_and_bills(
    gateway: RunningGateway, dialect: str
):
    body: dict[str, Any] = {"model": MODEL, "input": "Hi"}
    if dialect == "messages":
        body = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    other = await as_key(gateway, endpoints=["chat/completions"])
    assert (await other.post(f"/{dialect}", body)).status_code == 403
    own = await as_key(gateway, endpoints=[dialect])
    response = await own.post(f"/{dialect}", body)
    assert response.status_code == 200
    await shipped(gateway, 1)
    told = await own.get(f"/generation?id={response.headers['x-generation-id']}")
    assert told.json()["data"]["outcome"] == "complete"
    assert response.json()["usage"]["cost"] == float(told.json()["data"]["total_cost_usd"]) > 0


async def test_usage_that_does_not_reach_the_ledger_is_named_until_it_does(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox_lag, "STUCK_S", 0.5)

    async def failing() -> dict[str, str]:
        ready = await gateway.client.get(f"{gateway.control_url}/ready")
        assert ready.status_code == 200
        troubles: dict[str, str] = ready.json().get("failing", {})
        return troubles

    books = sqlite3.connect(gateway.state_dir / "prime.db", timeout=10)
    books.execute("ALTER TABLE usage_event RENAME TO elsewhere")
    await gateway.chat()
    async with asyncio.timeout(20):
        while "shipper" not in await failing():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await gateway.metric("prime_outbox_lag_seconds") > 0.5
    books.execute("ALTER TABLE elsewhere RENAME TO usage_event")
    books.close()
    async with asyncio.timeout(20):
        while "shipper" in await failing():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await shipped(gateway, 1)
    assert await gateway.metric("prime_outbox_lag_seconds") == 0


async def test_embeddings_pay_for_their_prompt(gateway: RunningGateway):
    response = await gateway.post("/embeddings", {"model": MODEL, "input": ["a b", "c"]})
    usage = response.json()["usage"]
    assert usage["cost"] == usage["prompt_tokens"] / 1_000_000 > 0
    await shipped(gateway, 1)


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


async def billed(gateway: RunningGateway, generation: str) -> dict[str, Any]:
    return dict((await gateway.get(f"/generation?id={generation}")).json()["data"])


@pytest.mark.parametrize(
    "lie", [None, usage_of(7, 9 * 10**18), usage_of(5 * 10**15, 7), usage_of(10**30, 10**30)]
)
async def test_tokens_that_no_engine_reports_are_estimated_billed_and_flagged(
    start_gateway: StartGateway, lie: dict[str, int] | None
):
    """Twenty-one bytes of prompt are five tokens; each event of an answer is one.

    Counts that no engine can have seen are as good as none.
    """
    silent = {"choices": WHOLE["choices"], "usage": lie}
    vectors = {"data": [{"index": 0, "embedding": [0.5]}], "usage": lie}
    last = event({"choices": [], "usage": lie})
    streamed = [STREAM_HEAD, delta(content="hel"), delta(content="lo"), delta("stop"), last, DONE]
    async with ScriptedEngine([]) as engine:
        gateway = await start_gateway(engine.base_url, billing=BillingOptions("sqlite"))
        await gateway.admin("POST", "prices", PRICE)
        for path, pieces, completion in (
            ("/chat/completions", [answer(silent)], 1),
            ("/chat/completions", streamed, 2),
            ("/embeddings", [answer(vectors)], 0),
        ):
            engine.pieces = pieces
            body = {"model": MODEL, "input": MESSAGES[0]["content"]}
            if path != "/embeddings":
                body = chat(stream=pieces is streamed)
            response = await gateway.post(path, body)
            assert response.status_code == 200
            ids = response.headers["x-generation-id"]
            told = await billed(gateway, ids)
            assert told["tokens_estimated"] is True
            assert (told["tokens_prompt"], told["tokens_completion"]) == (5, completion)
            assert Decimal(told["total_cost_usd"]) == Decimal(5 + 2 * completion) / 1_000_000
            if path == "/embeddings":
                assert response.json()["usage"]["prompt_tokens"] == 5
                assert response.json()["usage"]["cost"] == told["total_cost"]
        await shipped(gateway, 3)
        assert (await gateway.admin("GET", "ledger/verify"))["sound"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_nobody_pays_for_more_than_his_request_can_use(
    start_gateway: StartGateway, stream: bool
):
    """A context of 4,096, and sixty-four tokens of answer: what a budget held, too."""
    many = usage_of(2**27, 2**27)
    last = event({"choices": [], "usage": many})
    streamed = [STREAM_HEAD, delta(content="hel"), delta("stop"), last, DONE]
    async with ScriptedEngine(streamed if stream else [answer({**WHOLE, "usage": many})]) as engine:
        gateway = await start_gateway(engine.base_url, billing=BillingOptions("sqlite"))
        await gateway.admin("POST", "prices", PRICE)
        response = await gateway.post("/chat/completions", chat(stream=stream, max_tokens=64))
        told = await billed(gateway, response.headers["x-generation-id"])
        assert (told["tokens_prompt"], told["tokens_completion"]) == (4096, 64)
        assert told["tokens_estimated"] is True
        assert Decimal(told["total_cost_usd"]) == Decimal(4096 + 2 * 64) / 1_000_000


async def test_tokens_that_an_engine_reports_are_not_estimated(gateway: RunningGateway):
    response = await gateway.chat(max_tokens=3)
    assert (await billed(gateway, response.headers["x-generation-id"]))["tokens_estimated"] is False


async def test_a_client_that_leaves_an_engine_that_reports_at_the_end_pays_the_prompt_too(
    start_gateway: StartGateway, engine: MockEngine
):
    engine.behave("stall-after-5")
    gateway = await start_gateway(engine, kinds=["openai"], billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    async with gateway.client.stream(
        "POST",
        gateway.url("/chat/completions"),
        json=chat(stream=True),
        headers=gateway.authorization(),
    ) as response:
        events = 0
        async for line in response.aiter_lines():
            events += line.startswith("data:")
            if events == 5:
                break
    row = await shipped(gateway, 1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (5, 5)
    assert Decimal(row["cost_usd"]) == Decimal(5 + 10) / 1_000_000


async def test_usage_is_kept_without_a_price_and_no_cost_is_told(gateway: RunningGateway):
    response = await gateway.chat(model="acme/vision-2")
    assert "cost" not in response.json()["usage"]
    row = await shipped(gateway, 1)
    assert row["completion_tokens"] == 64
    assert Decimal(row["cost_usd"]) == 0


async def test_the_catalogue_shows_what_is_charged_and_no_other_price(gateway: RunningGateway):
    priced = (await gateway.get(f"/models/{MODEL}")).json()["pricing"]
    unpriced = (await gateway.get("/models/acme/vision-2")).json()["pricing"]
    assert float(priced["prompt"]) == 1 / 1_000_000
    assert float(unpriced["prompt"]) == float(unpriced["completion"]) == 0


async def test_a_failed_attempt_costs_nothing_and_the_answer_is_billed_once(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    engine.behave("end-after-0")
    await gateway.stream(max_tokens=9)
    row = await shipped(gateway, 1)
    assert Decimal(row["cost_usd"]) == dollars(9)


INPUT = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"name": "weather", "input_schema": INPUT}
BROKEN_CALL = {
    "model": MODEL, "max_tokens": 99, "messages": MESSAGES, "tools": [TOOL],
    "tool_choice": {"type": "any"},
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_message_whose_call_cannot_be_written_fails_and_costs_nothing(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("calls-1.broken-arguments")
    response = await gateway.post("/messages", {**BROKEN_CALL, "stream": stream})
    if stream:
        assert response.status_code == 200
        assert "event: error" in response.text
        assert "message_stop" not in response.text
        generation = response.headers["x-generation-id"]
    else:
        assert response.status_code == 502
        assert response.json()["error"]["type"] == "api_error"
        generation = f"msg_{response.json()['request_id']}"
    await shipped(gateway, 1)
    told = (await gateway.get(f"/generation?id={generation}")).json()["data"]
    assert (told["outcome"], float(told["total_cost_usd"])) == ("failed", 0)
    assert await gateway.metric("prime_tool_call_errors_total", error="InvalidJson") == 1
    assert await gateway.metric("prime_breaker_changes_total") == 0


async def test_a_message_whose_call_was_cut_is_an_answer_and_pays(
    gateway: RunningGateway, engine: MockEngine
):
    response = await gateway.post("/messages", {**BROKEN_CALL, "max_tokens": 2})
    assert response.json()["stop_reason"] == "max_tokens"
    row = await shipped(gateway, 1)
    assert Decimal(row["cost_usd"]) > 0


async def test_another_deployment_is_asked_where_one_breaks_a_messages_call(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    engine.behave("broken-arguments")
    response = await gateway.post("/messages", BROKEN_CALL)
    assert response.json()["stop_reason"] == "tool_use"
    assert len(engine.requests) == len(spare.requests) == 1
    row = await shipped(gateway, 1)  # one generation, and its own tokens only
    told = response.json()["usage"]
    assert row["completion_tokens"] == told["output_tokens"]


@pytest.mark.parametrize("behaviour", ["cut-after-5", "error-after-5", "stall-after-5"])
async def test_an_answer_that_fails_in_the_middle_costs_nothing(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, clocks=SHORT, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    engine.behave(behaviour)
    await gateway.stream()
    row = await shipped(gateway, 1)
    assert row["completion_tokens"] == 5
    assert Decimal(row["cost_usd"]) == 0


async def test_a_client_that_leaves_pays_for_what_was_generated(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("stall-after-5")
    body = chat(stream=True)
    async with gateway.client.stream(
        "POST", gateway.url("/chat/completions"), json=body, headers=gateway.authorization()
    ) as response:
        events = 0
        async for line in response.aiter_lines():
            events += line.startswith("data:")
            if events == 5:
                break
    row = await shipped(gateway, 1)
    assert row["completion_tokens"] == 5
    assert Decimal(row["cost_usd"]) == Decimal(row["prompt_tokens"] + 10) / 1_000_000
    prompt, _ = expected_usage(MESSAGES, 5)
    assert row["prompt_tokens"] in (0, prompt)  # an engine may count the prompt only at the end


async def test_a_refused_request_leaves_no_trace_in_the_books(gateway: RunningGateway):
    await gateway.chat(model="acme/nothing")
    await gateway.chat(prediction={"type": "content", "content": "x"})
    await gateway.chat(max_tokens=3)
    assert (await shipped(gateway, 1))["completion_tokens"] == 3


async def test_models_tell_the_price_in_both_styles(gateway: RunningGateway):
    pricing = (await gateway.get(f"/models/{MODEL}")).json()["pricing"]
    assert pricing["prompt"] == "0.000001"
    assert pricing["completion"] == "0.000002"
    assert pricing["input_cache_read"] == "0.0000001"
    assert pricing["input_usd_per_mtok"] == 1.0
    assert pricing["output_usd_per_mtok"] == 2.0


async def test_a_price_a_million_times_off_is_refused_with_a_preview(gateway: RunningGateway):
    wrong = {**PRICE, "prompt": "1000000"}
    response = await gateway.admin_response("POST", "prices", wrong)
    assert response.status_code == 400
    assert "would cost $1000.001" in response.json()["error"]["metadata"]["preview"]
    assert (await gateway.chat(max_tokens=1)).json()["usage"]["cost"] == float(dollars(1))
    made = await gateway.admin("POST", "prices", {**wrong, "confirm": True})
    assert made["version"] == 2
    assert (await gateway.chat(max_tokens=1)).json()["usage"]["cost"] > 1


async def test_a_team_is_billed_for_its_members_only(gateway: RunningGateway):
    acme = await team(gateway)
    header = {"X-Prime-Team-ID": acme}
    stranger = await gateway.post("/chat/completions", chat(), **header)
    assert stranger.status_code == 403
    assert stranger.json()["error"]["param"] == "X-Prime-Team-ID"
    await gateway.admin("PUT", f"teams/{acme}/members/local", {"role": "viewer"})
    assert (await gateway.post("/chat/completions", chat(), **header)).status_code == 403
    await gateway.admin("PUT", f"teams/{acme}/members/local", {"role": "member"})
    billed = await gateway.post("/chat/completions", chat(max_tokens=5), **header)
    assert billed.status_code == 200
    assert Decimal((await shipped(gateway, 1, tenant=acme))["cost_usd"]) == dollars(5)
    await gateway.admin("DELETE", f"teams/{acme}/members/local")
    assert (await gateway.post("/chat/completions", chat(), **header)).status_code == 403


async def test_a_wallet_is_that_of_the_team_in_the_query_and_tells_of_all_its_entries(
    gateway: RunningGateway,
):
    """As users' `prime wallet` asks: limit, offset and teamId."""
    acme = await team(gateway)
    for number in range(3):
        credit = {"tenant": acme, "amount_usd": "1", "reference": f"c{number}"}
        await gateway.admin("POST", "credits", credit)
    path = f"/billing/wallet?limit=1&teamId={acme}"
    stranger = await gateway.get(path)
    assert stranger.status_code == 403
    await gateway.admin("PUT", f"teams/{acme}/members/local", {"role": "admin"})
    for offset, shown in ((0, 1), (2, 1), (3, 0)):
        wallet = (await gateway.get(f"{path}&offset={offset}")).json()
        assert (wallet["team_id"], wallet["balance_usd"]) == (acme, 3)
        assert (wallet["total_billings"], len(wallet["recent_billings"])) == (3, shown)
    assert (await gateway.get("/billing/wallet")).json()["total_billings"] == 0  # one's own
    header = gateway.authorization() | {"X-Prime-Team-ID": "local"}
    two = await gateway.client.get(gateway.url(path), headers=header)
    assert (two.status_code, two.json()["error"]["param"]) == (400, "teamId")


async def test_a_key_is_shown_once_and_works_until_it_is_revoked(gateway: RunningGateway):
    acme = await team(gateway)
    own = await as_key(gateway, acme)
    assert (await own.chat()).status_code == 200
    listed = await gateway.admin("GET", f"keys?tenant={acme}")
    assert own.key not in json.dumps(listed)
    assert own.key not in json.dumps(await gateway.admin("GET", "audit"))
    (key,) = listed["keys"]
    assert key["last_four"] == own.key.split("_")[3][-4:]
    await gateway.admin("POST", f"keys/{key['id']}/revoke")
    assert (await own.chat()).status_code == 401


async def test_both_texts_of_a_rotated_key_work_in_the_overlap(gateway: RunningGateway):
    own = await as_key(gateway, await team(gateway))
    key_id = own.key.split("_")[2]
    rotated = await gateway.admin("POST", f"keys/{key_id}/rotate", {"overlap_seconds": 3600})
    new = replace(own, key=rotated["key"])
    assert [(await each.chat()).status_code for each in (own, new)] == [200, 200]
    rotated = await gateway.admin("POST", f"keys/{key_id}/rotate", {"overlap_seconds": 60})
    newer = replace(own, key=rotated["key"])
    assert [(await each.chat()).status_code for each in (own, new, newer)] == [200, 200, 200]
    assert [text["last_four"] for text in rotated["earlier_texts"]] == [
        each.key.split("_")[3][-4:] for each in (own, new)
    ]
    rotated = await gateway.admin("POST", f"keys/{key_id}/rotate", {"overlap_seconds": 0})
    last = replace(own, key=rotated["key"])
    assert [(await each.chat()).status_code for each in (own, newer, last)] == [401, 401, 200]


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ({"models": [MODEL]}, 200),
        ({"models": ["acme/vision-2"]}, 403),
        ({"endpoints": ["embeddings"]}, 403),
        ({"networks": ["127.0.0.0/8"]}, 200),
        ({"networks": ["10.0.0.0/8"]}, 403),
        ({"expires_in_seconds": 0}, 401),
    ],
)
async def test_a_key_is_for_its_scope(gateway: RunningGateway, scope: dict[str, Any], status: int):
    own = await as_key(gateway, **scope)
    assert (await own.chat()).status_code == status


async def test_a_budget_that_is_used_up_is_a_402_with_what_is_left(gateway: RunningGateway):
    own = await as_key(gateway, spend_cap_usd="0.0005")
    statuses: list[int] = []
    while not statuses or (statuses[-1] == 200 and len(statuses) < 50):
        response = await own.chat(max_tokens=20)
        statuses.append(response.status_code)
    assert statuses[-1] == 402
    assert len(statuses) > 1
    error = response.json()["error"]
    assert error["metadata"]["error_type"] == "payment_required"
    assert error["metadata"]["limit"]["kind"] == "budget_total"
    assert response.headers["x-ratelimit-remaining"] == error["metadata"]["limit"]["remaining"]
    key = (await own.get("/key")).json()["data"]
    assert key["limit"] == 0.0005


@pytest.mark.parametrize("told", [None, 576])
async def test_images_of_a_few_bytes_do_not_overspend_a_budget(
    start_gateway: StartGateway, told: int | None
):
    """Five images of 576 tokens each, at $100 a million; a context has 4,096."""
    images = [{"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGODlhAQABAAAA"}}]
    body = {"messages": [{"role": "user", "content": images * 5}], "max_tokens": 1}
    async with ScriptedEngine([answer({**WHOLE, "usage": usage_of(5 * 576 + 9, 1)})]) as engine:
        plain, vision = models()
        vision = replace(vision, image_tokens=told)
        gateway = await start_gateway(
            engine.base_url, catalog_models=[plain, vision], billing=BillingOptions("sqlite")
        )
        price = {**PRICE, "model": vision.id, "prompt": "100", "confirm": True}
        await gateway.admin("POST", "prices", price)
        own = await as_key(gateway, spend_cap_usd="1")
        answers = await asyncio.gather(*(own.chat(model=vision.id, **body) for _ in range(20)))
        statuses = [each.status_code for each in answers]
        assert set(statuses) == {200, 402}
        served = statuses.count(200)
        while (await own.chat(model=vision.id, **body)).status_code == 200:
            served += 1
        row = await shipped(gateway, served)
        assert 0.5 < float(row["cost_usd"]) <= 1


async def test_an_image_is_held_for_what_its_model_says_and_no_longer_by_its_bytes():
    url = "data:image/png;base64," + "A" * 100_000
    part = ImagePart(image_url=ImageUrl(url=url))
    text = ChatRequest(model=MODEL, messages=[UserMessage(content=[TextPart(text="x" * 500)])])
    both = ChatRequest(
        model=MODEL, messages=[UserMessage(content=[part, TextPart(text="x" * 500)])]
    )
    vision = replace(models()[1], context_tokens=10**6, image_tokens=576)
    without, _ = most_tokens(chat_operation(text), vision)
    prompt, _ = most_tokens(chat_operation(both), vision)
    assert without + 576 <= prompt <= without + 576 + 100
    unknown, _ = most_tokens(chat_operation(both), replace(vision, image_tokens=None))
    assert unknown == 10**6


async def test_a_prepaid_team_spends_what_it_has_paid_in_and_no_more(gateway: RunningGateway):
    acme = await team(gateway)
    own = await as_key(gateway, acme)
    assert (await own.chat(max_tokens=20)).status_code == 200  # invoiced: it owes
    await gateway.admin("PUT", f"tenants/{acme}/payment", {"payment": "prepaid"})
    refused = await own.chat(max_tokens=20)
    assert refused.status_code == 402
    assert refused.json()["error"]["metadata"]["limit"]["kind"] == "wallet"
    assert refused.headers["x-ratelimit-remaining"] == "0.00"
    held = Decimal("0.0004")  # of each request: its prompt at the upper bound
    paid = {"tenant": acme, "amount_usd": str(held * 10), "reference": "invoice-1"}
    await gateway.admin("POST", "credits", paid)
    answers = await asyncio.gather(*(own.chat(max_tokens=20) for _ in range(100)))
    assert {answer.status_code for answer in answers} == {200, 402}
    passed = sum(answer.status_code == 200 for answer in answers)
    await shipped(gateway, passed + 1)
    wallet = await gateway.admin("GET", f"wallet/{acme}")
    assert 0 <= Decimal(wallet["balance_usd_text"]) < held * 10
    key = (await own.get("/key")).json()["data"]
    assert [limit["kind"] for limit in key["limits"]] == ["wallet"]
    await gateway.admin("PUT", f"tenants/{acme}/payment", {"payment": "invoiced"})
    assert (await own.chat(max_tokens=20)).status_code == 200


async def test_what_a_team_used_while_it_was_invoiced_counts_when_it_is_prepaid_again(
    gateway: RunningGateway,
):
    acme = await team(gateway)
    own = await as_key(gateway, acme)

    async def pays(how: str) -> None:
        await gateway.admin("PUT", f"tenants/{acme}/payment", {"payment": how})

    paid = {"tenant": acme, "amount_usd": "0.00045", "reference": "invoice-1"}
    await gateway.admin("POST", "credits", paid)
    await pays("prepaid")
    assert (await own.chat(max_tokens=20)).status_code == 200
    await pays("invoiced")
    for _ in range(10):
        assert (await own.chat(max_tokens=20)).status_code == 200
    await shipped(gateway, 11)
    await pays("prepaid")
    assert (await own.chat(max_tokens=20)).status_code == 402


async def test_two_hundred_at_once_on_a_budget_for_ten_never_spend_over_it(
    gateway: RunningGateway,
):
    # each may use its 20 completion tokens; the prompt is held at its upper bound
    held = Decimal("0.0004")
    own = await as_key(gateway, spend_cap_usd=str(held * 10))
    answers = await asyncio.gather(*(own.chat(max_tokens=20) for _ in range(200)))
    passed = sum(answer.status_code == 200 for answer in answers)
    assert {answer.status_code for answer in answers} <= {200, 402}
    row = await shipped(gateway, passed)
    assert 0 < Decimal(row["cost_usd"]) <= held * 10


@pytest.mark.parametrize(
    ("limit", "status", "kind"),
    [
        ({"kind": "budget_daily", "most_usd": "0"}, 402, "billing_error"),
        ({"kind": "requests_per_minute", "most": 0}, 429, "rate_limit_error"),
    ],
)
async def test_every_dialect_is_told_of_a_limit_with_the_same_headers(
    gateway: RunningGateway, limit: dict[str, Any], status: int, kind: str
):
    await gateway.admin("POST", "limits", limit)
    chatted = await gateway.chat(max_tokens=1)
    names = [name for name in chatted.headers if name.startswith(("x-ratelimit-", "retry-after"))]
    assert len(names) == 5
    bodies: dict[str, dict[str, Any]] = {
        "/messages": {"messages": MESSAGES, "max_tokens": 1},
        "/responses": {"input": "Hi", "max_output_tokens": 16},
    }
    for path, body in bodies.items():
        for stream in (False, True):
            refused = await gateway.post(path, {"model": MODEL, "stream": stream, **body})
            assert refused.status_code == chatted.status_code == status
            assert set(names) <= set(refused.headers)
            for name in ("x-ratelimit-name", "x-ratelimit-limit", "x-ratelimit-remaining"):
                assert refused.headers[name] == chatted.headers[name]
            error = refused.json()["error"]
            details = error["details"] if path == "/messages" else error["metadata"]
            assert details["limit"]["kind"] == limit["kind"]
            if path == "/messages":
                assert error["type"] == kind


@pytest.mark.parametrize(
    ("limit", "passing"),
    [
        ({"kind": "requests_per_minute", "most": 3, "model": MODEL}, 3),
        ({"kind": "tokens_per_minute", "most": 1, "tenant": "local"}, 1),
    ],
)
async def test_a_rate_that_is_reached_is_a_429_that_says_when(
    gateway: RunningGateway, limit: dict[str, Any], passing: int
):
    await gateway.admin("POST", "limits", limit)
    answers = [await gateway.chat(max_tokens=1) for _ in range(passing + 1)]
    assert [answer.status_code for answer in answers] == [200] * passing + [429]
    last = answers[-1]
    assert last.json()["error"]["metadata"]["limit"]["kind"] == limit["kind"]
    assert int(last.headers["retry-after"]) > 0
    assert float(last.headers["x-ratelimit-reset"]) > 0


async def test_concurrency_is_given_back_when_a_request_ends(
    gateway: RunningGateway, engine: MockEngine
):
    await gateway.admin("POST", "limits", {"kind": "concurrency", "most": 1, "tenant": "local"})
    engine.behave("stall-after-5")
    held = asyncio.create_task(gateway.stream())
    async with asyncio.timeout(5):
        while not engine.requests:  # noqa: ASYNC110  # the journal has no event
            await asyncio.sleep(0.01)  # the engine's journal has no event
    engine.behave("")
    refused = await gateway.chat(max_tokens=1)
    assert (refused.status_code, refused.headers["x-ratelimit-limit"]) == (429, "1")
    held.cancel()
    async with asyncio.timeout(5):
        while (await gateway.chat(max_tokens=1)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("path", ["teams", "keys", "audit", "nothing"])
async def test_the_admin_api_is_for_whoever_has_its_key(gateway: RunningGateway, path: str):
    url = f"{gateway.control_url}/admin/v1/{path}"
    for headers in ({}, gateway.authorization(), {"authorization": "Bearer x"}):
        response = await gateway.client.get(url, headers=headers)
        assert response.status_code == 401
    public = await gateway.get(f"/../../admin/v1/{path}")
    assert public.status_code == 404


NOT_RIGHT: list[tuple[str, str, Any, int]] = [
    ("POST", "keys", {"tenant": "nobody", "name": "x"}, 404),
    ("POST", "keys", {"tenant": "local", "name": "x", "budget": 1}, 400),
    ("POST", "keys", {"tenant": "local", "name": "x", "networks": ["nonsense"]}, 400),
    ("POST", "limits", {"kind": "budget_daily", "most": 5}, 400),
    ("POST", "limits", {"kind": "concurrency"}, 400),
    ("POST", "prices", {"model": MODEL, "prompt": "x", "completion": "1"}, 400),
    ("POST", "prices", {**PRICE, "effective_from": "2020-01-01"}, 400),
    ("POST", "prices", {**PRICE, "effective_from": "9999-12-31T23:59:59-14:00"}, 400),
    ("POST", "prices", {**PRICE, "effective_from": "soon"}, 400),
    ("POST", "prices", {**PRICE, "prompt": "0"}, 400),
    ("POST", "prices", {**PRICE, "request": "1e9", "confirm": True}, 400),
    ("POST", "prices", {**PRICE, "completion": "1e30", "confirm": True}, 400),
    ("POST", "prices", {**PRICE, "request": "9e999999999"}, 400),
    ("POST", "prices", {**PRICE, "request": "0.005"}, 400),
    ("POST", "credits", {"tenant": "local", "amount_usd": "9e9", "reference": "r"}, 400),
    ("POST", "limits", {"kind": "budget_daily", "most_usd": "9e9"}, 400),
    ("POST", "limits", {"kind": "concurrency", "most": 2**80}, 400),
    ("POST", "limits", {"kind": "wallet", "most_usd": "1"}, 400),
    ("POST", "limits", {"kind": "reserved_output_tokens_per_minute", "most": 1}, 400),
    ("PUT", "tenants/local/payment", {"payment": "later"}, 400),
    ("POST", "prices", {**PRICE, "batch_discount_percent": 0.004}, 400),
    ("POST", "teams", {"name": "x\0", "slug": "x"}, 400),
    ("POST", "teams", {"name": "x\u202ey", "slug": "x"}, 400),
    ("POST", "teams", {"name": "x", "slug": "a\n"}, 400),
    ("POST", "keys", {"tenant": "local", "name": "x\x1b[2J"}, 400),
    ("POST", "credits", {"tenant": "local", "amount_usd": "1", "reference": "r\n"}, 400),
    (
        "POST",
        "credits",
        {"tenant": "local", "amount_usd": "1", "reference": "r", "memo": "\0"},
        400,
    ),
    ("GET", "usage?tenant=%00", None, 400),
    ("GET", "wallet/%00", None, 400),
    ("PUT", "tenants/nobody/payment", {"payment": "prepaid"}, 404),
    ("POST", "credits", {"tenant": "local", "amount_usd": "-1", "reference": "r"}, 400),
    ("POST", "teams", {"name": "x", "slug": "Not A Slug"}, 400),
    ("GET", "statements/local/9999-12", None, 400),
    ("GET", "statements/local/0001-01", None, 400),
    ("GET", f"audit?limit={2**70}", None, 400),
    ("GET", "audit?limit=-1", None, 400),
    ("PATCH", "teams", None, 405),
    ("GET", "nothing", None, 404),
    ("POST", "keys/none/revoke", None, 404),
]


async def test_the_admin_api_refuses_what_is_not_right(gateway: RunningGateway):
    for method, path, body, status in NOT_RIGHT:
        response = await gateway.admin_response(method, path, body)
        assert response.status_code == status, (path, body, response.text)
        assert response.json()["error"]["message"]


async def test_what_is_refused_for_its_moment_is_written_nowhere(gateway: RunningGateway):
    """Beyond the last year, as on the other side of the date line."""
    acme = await team(gateway)
    before = (await gateway.admin("GET", "audit"))["entries"]
    reservation = {"tenant": acme, "model": MODEL, "slots": 1, "price_usd": "1"}
    for late in ("9999-12-31T23:59:59-14:00", "9999-06-01", "0001-01-01T00:00:00+14:00"):
        for path, body in (
            ("prices", {**PRICE, "effective_from": late}),
            ("reservations", {**reservation, "from": late}),
            ("reservations", {**reservation, "to": late}),
        ):
            refused = await gateway.admin_response("POST", path, body)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] in ("from", "to", "effective_from")
    assert (await gateway.admin("GET", "audit"))["entries"] == before
    assert len((await gateway.admin("GET", "prices"))["prices"]) == 1
    assert (await gateway.admin("GET", "reservations"))["total_count"] == 0
    made = await gateway.admin("POST", "reservations", reservation)
    path = f"reservations/{made['id']}/end"
    assert (await gateway.admin_response("POST", path, {"at": late})).status_code == 400
    for wanted in ("usage?from=9999-12-31T23:59:59-14:00", "usage?to=soon"):
        assert (await gateway.get(f"/{wanted}")).status_code == 400
    shown = await gateway.admin("GET", f"reservations/{made['id']}")
    assert (shown["to"], shown["on"]) == (None, {"engine-0": 1})


async def test_a_change_that_cannot_be_shown_is_not_made(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
):
    """An answer is written before the change is committed: who is refused has changed nothing."""
    acme = await team(gateway)
    made = await gateway.admin("POST", "keys", {"tenant": acme, "name": "k"})
    reservation = {"tenant": acme, "model": MODEL, "slots": 1, "price_usd": "1"}
    reserved = await gateway.admin("POST", "reservations", reservation)

    def unshowable(*_: object) -> object:
        raise ValueError("it cannot be shown")

    for place in (
        "prices.price_object",
        "limits.limit_object",
        "keys._key_object",
        "tenants._tenant_object",
        "reservations.reservation_object",
    ):
        monkeypatch.setattr(f"prime_inference.control.{place}", unshowable)
    before = (await gateway.admin("GET", "audit"))["entries"]
    for path, body in (
        ("prices", PRICE),
        ("limits", {"kind": "concurrency", "most": 1}),
        ("keys", {"tenant": acme, "name": "k", "spend_cap_usd": "1"}),
        (f"keys/{made['id']}/rotate", {}),
        (f"keys/{made['id']}/revoke", None),
        ("teams", {"name": "b", "slug": "b"}),
        ("people", {"name": "c", "slug": "c"}),
        ("reservations", reservation),
        (f"reservations/{reserved['id']}/end", None),
    ):
        refused = await gateway.admin_response("POST", path, body)
        assert refused.status_code == 400, path
    assert (await gateway.admin("GET", "audit"))["entries"] == before


@pytest.mark.parametrize("path", ["usage?key=%00", "usage?model=%00", "generation?id=a%00"])
async def test_what_no_database_holds_is_asked_of_none(gateway: RunningGateway, path: str):
    """Postgres has no NUL in a text, and said so in a way that looked like its absence."""
    refused = await gateway.get(f"/{path}")
    assert refused.status_code == 400
    assert "unprintable" in refused.json()["error"]["message"]


async def test_a_limit_beyond_the_greatest_is_told_in_what_it_was_given_in(
    gateway: RunningGateway,
):
    for amount, told in (({"most_usd": "99999999"}, "$4503599.62"), ({"most": 2**53}, str(2**52))):
        kind = "budget_daily" if "most_usd" in amount else "concurrency"
        refused = await gateway.admin_response("POST", "limits", {"kind": kind, **amount})
        assert refused.status_code == 400
        assert told in refused.json()["error"]["message"]


RESERVE = {"tenant": "local", "model": MODEL, "slots": 1, "price_usd": "1"}
MISTYPED: list[tuple[str, dict[str, Any], str, str]] = [
    ("reservations", {**RESERVE, "model": "acme/eco-1"}, "model", MODEL),
    ("reservations", {**RESERVE, "datacenters": ["dc-00"]}, "datacenters", "dc-0"),
    ("reservations", {**RESERVE, "tenant": "acme"}, "tenant", "team_"),
    ("limits", {"kind": "concurrency", "most": 1, "model": "acme/eco-1"}, "model", MODEL),
    ("limits", {"kind": "concurrency", "most": 1, "tenant": "acme"}, "tenant", "team_"),
    ("limits", {"kind": "concurrency", "most": 1, "key": "laptop"}, "key", "(laptop)"),
    ("keys", {"tenant": "Acme", "name": "x"}, "tenant", "team_"),
    (
        "keys",
        {"tenant": "local", "name": "x", "models": [MODEL, "acme/ech-1"]},
        "models",
        MODEL,
    ),
    (
        "keys",
        {"tenant": "local", "name": "x", "endpoints": ["chat"]},
        "endpoints",
        "chat/completions",
    ),
    ("prices", {**PRICE, "model": "acme/echo"}, "model", MODEL),
    ("credits", {"tenant": "acme", "amount_usd": "1", "reference": "r"}, "tenant", "team_"),
]


async def test_a_name_that_nothing_has_is_refused_with_the_nearest(gateway: RunningGateway):
    await team(gateway)
    made = await gateway.admin("POST", "keys", {"tenant": "local", "name": "laptop"})
    for path, body, param, nearest in MISTYPED:
        refused = await gateway.admin_response("POST", path, body)
        assert refused.status_code in (400, 404), refused.text
        error = refused.json()["error"]
        assert error["param"] == param
        assert nearest in error["message"]
        if param == "key":
            assert made["id"] in error["message"]
        if param in ("model", "models") and path != "reservations":  # of slots that there are
            assert "--new-model" in error["message"]
            taken = await gateway.admin("POST", path, {**body, "new_model": True})
            if path == "prices":
                assert taken["version"] == 1


@pytest.mark.parametrize("path", ["wallet/acme", "statements/acme/2026-01", "usage?tenant=acme"])
async def test_nobody_is_told_of_an_account_that_is_not_there(gateway: RunningGateway, path: str):
    acme = await team(gateway)
    refused = await gateway.admin_response("GET", path)
    assert refused.status_code == 404
    assert f"Did you mean {acme} (acme)?" in refused.json()["error"]["message"]


async def test_this_machines_own_key_can_be_limited(gateway: RunningGateway):
    own = {"key": gateway.key.split("_")[2], "kind": "requests_per_minute", "most": 0}
    await gateway.admin("POST", "limits", own)
    assert (await gateway.chat()).status_code == 429


async def test_credits_and_adjustments_move_the_balance_once(gateway: RunningGateway):
    paid = {"tenant": "local", "amount_usd": "10", "reference": "invoice-1"}
    for _ in range(2):
        answer = await gateway.admin("POST", "credits", paid)
    assert answer == {"reference": "invoice-1", "fresh": False, "balance_usd": "10.00"}
    back = {"tenant": "local", "amount_usd": "-2.5", "reference": "a", "about": "g", "memo": "m"}
    assert (await gateway.admin("POST", "adjustments", back))["balance_usd"] == "7.50"
    wallet = (await gateway.get("/billing/wallet")).json()
    assert wallet["balance_usd"] == 7.5
    assert [each["resource_type"] for each in wallet["recent_billings"]] == ["adjustment", "credit"]
    verified = await gateway.admin("GET", "ledger/verify")
    assert (verified["sound"], verified["audit_broken_at"]) == (True, None)
    entries = (await gateway.admin("GET", "audit"))["entries"]
    assert (verified["audit_entries"], verified["audit_head"]) == (
        len(entries),
        entries[-1]["hash"],
    )


async def test_what_was_used_before_a_restart_still_counts_for_the_budget(
    start_gateway: StartGateway, engine: MockEngine, tmp_path: Any
):
    database = BillingOptions(f"sqlite:{tmp_path / 'shared.db'}")
    first = await start_gateway(engine, billing=database)
    await first.admin("POST", "prices", PRICE)
    budget = {"kind": "budget_total", "most_usd": "0.0005", "model": MODEL}
    await first.admin("POST", "limits", budget)
    spent = 0
    while (await first.chat(max_tokens=20)).status_code == 200:
        spent += 1
    await shipped(first, spent)
    second = await start_gateway(engine, billing=database)
    assert (await second.chat(max_tokens=20)).status_code == 402


def break_journal(gateway: RunningGateway) -> None:
    """Let the open file of the outbox refuse every write, as if the disk had gone."""
    (journal,) = (gateway.state_dir / "outbox").glob("*.log")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for link in Path("/proc/self/fd").iterdir():
        if link.exists() and link.samefile(journal):
            os.dup2(nowhere, int(link.name))
    os.close(nowhere)


async def test_an_answer_that_cannot_be_accounted_for_is_not_given(gateway: RunningGateway):
    break_journal(gateway)
    assert (await gateway.chat()).status_code == 500
    streamed = await gateway.stream()
    assert streamed.error is not None
    assert not streamed.done


async def test_without_a_database_there_is_no_admin_api_and_no_cost(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine)
    assert "cost" not in (await gateway.chat()).json()["usage"]
    response = await gateway.client.get(f"{gateway.control_url}/admin/v1/teams")
    assert response.status_code == 404
    assert (await gateway.get("/key")).status_code == 404


async def test_tenants_share_no_prefix_cache_and_cannot_choose_whose(start_gateway: StartGateway):
    async with ScriptedEngine([answer(WHOLE), answer(WHOLE), answer(WHOLE)]) as engine:
        gateway = await start_gateway(engine.base_url, billing=BillingOptions("sqlite"))
        other = await as_key(gateway, await team(gateway))
        for asking in (gateway, gateway, other):
            assert (await asking.chat()).status_code == 200
        own, again, others = (body["cache_salt"] for body in engine.bodies)
    assert own == again != others
    assert len(own) == 43
    assert (await gateway.chat(cache_salt=others)).status_code == 400


async def test_a_revocation_reaches_another_gateway_within_ten_seconds(
    start_gateway: StartGateway, engine: MockEngine, tmp_path: Any
):
    database = BillingOptions(f"sqlite:{tmp_path / 'shared.db'}")
    first = await start_gateway(engine, billing=database)
    own = await as_key(first)
    second = await start_gateway(engine, billing=database)
    there = replace(second, key=own.key)
    assert (await there.chat()).status_code == 200
    await first.admin("POST", f"keys/{own.key.split('_')[2]}/revoke")
    assert (await own.chat()).status_code == 401
    async with asyncio.timeout(10):
        while (await there.chat()).status_code != 401:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
