"""Reserved capacity at the gateway: made, seen, paid, used, and taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prime_inference.accounts.directory import Directory, Records
from prime_inference.accounts.live import LiveDirectory
from prime_inference.adapters.files.outbox import FileOutbox
from prime_inference.adapters.memory.limits import MemoryLimits
from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.billing.holds import Holds
from prime_inference.compose import BillingOptions
from prime_inference.domain.errors import ReservationExhausted
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.prices import Price
from prime_inference.domain.reservations import Period, Reservation
from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.billing import Billing
from prime_inference.gateway.cache_salts import CacheSalts
from prime_inference.gateway.operations import chat_operation
from prime_inference.gateway.run import Run
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import decode_chat_request
from tests.redis_server import RedisServer

from .conftest import StartGateway
from .followed_file import FollowedFile, started
from .running import MODEL, RunningGateway, chat, models

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
    ):
        refused = await gateway.admin_response("POST", "reservations", {**wanted, **wrong})
        assert refused.status_code == 400, wrong
        assert named in refused.text
    missing = await gateway.admin_response("GET", "reservations/res_0")
    assert missing.status_code == 404
    nobody = await gateway.admin_response("POST", "reservations", {**wanted, "tenant": "nobody"})
    assert nobody.status_code == 404


async def test_a_doubtful_price_is_made_when_it_is_confirmed(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    wanted = {"tenant": tenant, "model": MODEL, "slots": 1, "price_usd": "100000"}
    refused = await gateway.admin_response("POST", "reservations", wanted)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "price_doubtful")
    assert "1 slots would cost $100000.00" in error["metadata"]["preview"]
    assert (await gateway.admin("GET", "reservations"))["total_count"] == 0
    await gateway.admin("POST", "reservations", {**wanted, "confirm": True})


async def test_a_scheduled_reservation_has_no_slots_and_costs_nothing(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    made = await reserve(gateway, tenant, 8, **{"from": "2100-01-01T00:00:00Z"})
    assert (made["state"], made["on"]) == ("scheduled", {})
    ended = await gateway.admin("POST", f"reservations/{made['id']}/end")
    assert ended["state"] == "ended"
    await reserve(gateway, tenant, 8)


# --- used


async def until_active(gateway: RunningGateway, own: RunningGateway) -> None:
    """Until the gateway gives the team's requests slots of its reservation."""
    async with asyncio.timeout(10):
        while "reserved:" not in (await own.chat()).headers.get("x-prime-pool", ""):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def event_of(gateway: RunningGateway, response: Any) -> Any:
    told = await gateway.get(f"/generation?id={response.headers['x-generation-id']}")
    return told.json()["data"]


async def test_who_served_is_in_the_header_the_event_and_the_bill(gateway: RunningGateway):
    tenant, own = await team(gateway)
    assert (await own.chat()).headers["x-prime-pool"] == "serverless"
    made = await reserve(gateway, tenant, 4)
    pool = f"reserved:{made['id']}"
    await until_active(gateway, own)
    whole = await own.chat()
    assert whole.headers["x-prime-pool"] == pool
    assert whole.json()["usage"]["cost"] == 0
    streamed = await own.stream(stream_options={"include_usage": True})
    assert streamed.headers["x-prime-pool"] == pool
    assert streamed.chunks[-1]["usage"]["cost"] == 0
    for answered in (whole, streamed):
        event = await event_of(own, answered)
        assert (event["pool"], event["total_cost_usd"]) == (pool, "0.00")
    assert (await gateway.chat()).headers["x-prime-pool"] == "serverless"
    async with asyncio.timeout(10):
        while True:
            report = await gateway.admin("GET", f"usage?group_by=pool&tenant={tenant}")
            pools = {row["pool"]: row["requests"] for row in report["data"]}
            if pools.get(pool, 0) >= 3:
                break
            await asyncio.sleep(0.05)
    month = datetime.now(UTC).strftime("%Y-%m")
    bill = await gateway.admin("GET", f"statements/{tenant}/{month}")
    assert pool in {line["pool"] for line in bill["lines"]}


async def test_the_first_hour_is_paid_at_once_and_in_the_statement(gateway: RunningGateway):
    tenant, own = await team(gateway)
    await reserve(gateway, tenant, 4)
    async with asyncio.timeout(30):
        while (await own.get("/billing/wallet")).json()["total_billings"] == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    wallet = (await own.get("/billing/wallet")).json()
    (paid,) = wallet["recent_billings"]
    assert (paid["amount_usd_text"], paid["resource_type"]) == ("-12.50", "reservation")
    month = datetime.now(UTC).strftime("%Y-%m")
    bill = await gateway.admin("GET", f"statements/{tenant}/{month}")
    assert (bill["reservations_usd"], bill["total_due_usd"]) == ("12.50", "12.50")
    assert (await gateway.admin("GET", "ledger/verify"))["sound"]


async def test_a_discount_is_taken_off_the_price_of_what_reserved_slots_serve(
    gateway: RunningGateway,
):
    tenant, own = await team(gateway)
    full = (await own.chat()).json()["usage"]["cost"]
    await reserve(gateway, tenant, 4, token_discount_percent=75)
    await until_active(gateway, own)
    assert (await own.chat()).json()["usage"]["cost"] == pytest.approx(full / 4)


@pytest.mark.parametrize("spill", [True, False])
async def test_over_its_reservation_a_team_spills_or_is_told(
    gateway: RunningGateway, engine: MockEngine, spare: MockEngine, spill: bool
):
    tenant, own = await team(gateway)
    made = await reserve(gateway, tenant, 2, spill=spill)
    await until_active(gateway, own)
    for each in (engine, spare):
        each.behave("slow-first-1000ms.answer-2")
    answers = await asyncio.gather(*(own.chat() for _ in range(3)))
    pools = sorted(each.headers.get("x-prime-pool", "") for each in answers)
    pool = f"reserved:{made['id']}"
    if spill:
        assert pools == [pool, pool, "serverless"]
        assert {each.headers.get("x-prime-over") for each in answers} == {None, "slots"}
        assert [each.status_code for each in answers] == [200] * 3
        return
    (refused,) = [each for each in answers if each.status_code != 200]
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "reservation_exhausted"
    assert refused.json()["error"]["metadata"]["reservations"] == [made["id"]]
    assert refused.json()["error"]["metadata"]["over"] == refused.headers["x-prime-over"] == "slots"
    assert pools == ["", pool, pool]


@pytest.mark.parametrize("spill", [True, False])
async def test_a_reservation_whose_slots_are_nowhere_spills_only_if_it_may(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    tmp_path: Path,
    spill: bool,
):
    """What is held of a budget for one that may not spill has room for reserved slots only."""
    elsewhere = (
        f'[[datacenters]]\nid = "west"\n[[deployments]]\nid = "two"\nmodel = "{MODEL}"\n'
        f'datacenter = "west"\nengine = "vllm"\nslots = 8\nbase_url = "{spare.base_url}"\n'
    )
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one", more=elsewhere)
    gateway = await started(start_gateway, fleet, billing=BillingOptions("sqlite"))
    await gateway.admin("POST", "prices", PRICE)
    tenant, own = await team(gateway)
    budget = {"kind": "budget_total", "most_usd": "0.000001", "tenant": tenant}
    await gateway.admin("POST", "limits", budget)
    await reserve(gateway, tenant, 5, datacenters=["east"], spill=spill)
    refusals = 402 if spill else 503
    if not spill:  # full price is beyond its budget, what reserved slots serve is free
        await until_active(gateway, own)
    drained = await gateway.client.post(
        f"{gateway.control_url}/fleet/deployments/one/drain", headers=gateway.authorization()
    )
    assert drained.status_code == 200
    async with asyncio.timeout(10):
        while (await own.chat()).status_code != refusals:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    answers = [await own.chat() for _ in range(3)]
    assert [each.status_code for each in answers] == [refusals] * 3
    if not spill:
        assert answers[0].json()["error"]["code"] == "capacity_exhausted"
        assert int(answers[0].headers["retry-after"]) >= 1
    assert not spare.requests


# --- tokens per second


async def test_tokens_that_the_slots_do_not_carry_cannot_be_reserved(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(
        engine, slots=4, tokens_per_second=400, billing=BillingOptions("sqlite")
    )
    tenant, _ = await team(gateway)
    wanted = {"tenant": tenant, "model": MODEL, "slots": 2, "price_usd": "1"}
    too_many = {**wanted, "tokens_per_second": 201}
    refused = await gateway.admin_response("POST", "reservations", too_many)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "tokens_per_second"
    assert (error["metadata"]["carries_tokens_per_second"], error["metadata"]["slots"]) == (200, 3)
    made = await reserve(gateway, tenant, 2, tokens_per_second=200)
    assert (made["tokens_per_second"], made["carries_tokens_per_second"]) == (200, 200)


async def test_what_slots_carry_is_measured_where_nobody_declares_it(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    wanted = {"tenant": tenant, "model": MODEL, "slots": 2, "price_usd": "1"}
    told = {**wanted, "tokens_per_second": 1, "datacenters": ["dc-0"]}
    unknown = await gateway.admin_response("POST", "reservations", told)
    assert unknown.status_code == 400
    assert "fleet file" in unknown.text
    for name in range(20):  # homes in both datacenters
        await gateway.chat(prompt_cache_key=f"{name}")
    await gateway.metric("prime_generations_total")  # what is gathered is counted
    made = await gateway.admin("POST", "reservations", told)
    assert made["carries_tokens_per_second"] > 1
    none = await reserve(gateway, tenant, 2)
    assert none["tokens_per_second"] is None


@pytest.mark.parametrize("spill", [True, False])
async def test_over_its_tokens_a_team_spills_or_is_told(
    start_gateway: StartGateway, engine: MockEngine, spill: bool
):
    gateway = await start_gateway(
        engine, slots=4, tokens_per_second=400, billing=BillingOptions("sqlite")
    )
    await gateway.admin("POST", "prices", PRICE)
    engine.behave("answer-50")  # a minute has 60
    tenant, own = await team(gateway)
    made = await reserve(gateway, tenant, 2, tokens_per_second=1, spill=spill)
    await until_active(gateway, own)
    async with asyncio.timeout(20):
        while True:
            answer = await own.chat()
            if "x-prime-over" in answer.headers:
                break
            assert answer.headers["x-prime-pool"] == f"reserved:{made['id']}"
            await asyncio.sleep(0.05)  # what was drawn is told in the background
    assert answer.headers["x-prime-over"] == "tokens_per_second"
    if spill:
        assert answer.headers["x-prime-pool"] == "serverless"
        assert answer.json()["usage"]["cost"] > 0
        assert (await event_of(own, answer))["pool"] == "serverless"
    else:
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-ratelimit-remaining"] == "0"
        error = answer.json()["error"]
        assert error["code"] == "reservation_exhausted"
        told = error["metadata"]
        assert (told["over"], told["tokens_per_second"]) == ("tokens_per_second", 1)
        assert told["reservations"] == [made["id"]]
    flex = await own.chat(service_tier="flex")  # comes under no reservation, used up or not
    assert (flex.status_code, flex.headers["x-prime-pool"]) == (200, "flex")
    assert "x-prime-over" not in flex.headers
    outcome = {"over": "tokens_per_second", "outcome": "spilled" if spill else "refused"}
    assert await gateway.metric("prime_over_reservation_total", **outcome) == 1
    drawn = await gateway.metric("prime_reserved_output_tokens_total", reservation=made["id"])
    assert drawn >= 100
    fleet = await gateway.client.get(
        f"{gateway.control_url}/fleet", headers=gateway.authorization()
    )
    (seen,) = fleet.json()["reservations"]
    assert (seen["id"], seen["slots"], seen["in_flight"]) == (made["id"], 2, 0)
    assert (seen["tokens_per_second"], seen["tokens_left"]) == (1, 0)


async def test_a_team_s_other_reservation_is_asked_before_it_spills_or_is_told(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(
        engine, slots=4, tokens_per_second=400, billing=BillingOptions("sqlite")
    )
    await gateway.admin("POST", "prices", PRICE)
    engine.behave("answer-50")
    tenant, own = await team(gateway)
    first = await reserve(gateway, tenant, 2, tokens_per_second=1, spill=False)
    await until_active(gateway, own)
    second = await reserve(gateway, tenant, 2, spill=False, token_discount_percent=0)
    async with asyncio.timeout(20):
        while True:
            answer = await own.chat()
            pool = answer.headers.get("x-prime-pool")
            if pool == f"reserved:{second['id']}":
                break
            assert answer.status_code == 429 or pool == f"reserved:{first['id']}"
            await asyncio.sleep(0.05)  # what was drawn, and the second, are not known at once
    assert "x-prime-over" not in answer.headers
    assert answer.json()["usage"]["cost"] > 0  # at the discount of the one that served
    assert (await event_of(own, answer))["pool"] == f"reserved:{second['id']}"


async def until_none_has_slots(gateway: RunningGateway) -> None:
    url, key = f"{gateway.control_url}/fleet", gateway.authorization()
    async with asyncio.timeout(10):
        while (await gateway.client.get(url, headers=key)).json()["reservations"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("spill", [True, False])
async def test_where_a_reservation_has_lost_all_its_slots_a_team_spills_or_is_told(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine, spill: bool
):
    west = (
        '[[datacenters]]\nid = "west"\n[[deployments]]\nid = "two"\ndatacenter = "west"\n'
        f'model = "{MODEL}"\nengine = "vllm"\nslots = 8\nbase_url = "{spare.base_url}"\n'
    )
    fleet = FollowedFile(tmp_path, one=engine)
    fleet.write("one", more=west)
    gateway = await started(start_gateway, fleet, billing=BillingOptions("sqlite"))
    tenant, own = await team(gateway)
    await reserve(gateway, tenant, 2, spill=spill, datacenters=["east"])
    await until_active(gateway, own)
    fleet.write(more=west)
    await fleet.taken(1)
    for _ in range(2):
        answer = await own.chat()
        if spill:
            assert (answer.status_code, answer.headers["x-prime-pool"]) == (200, "serverless")
            assert answer.headers["x-prime-over"] == "slots"
        else:  # our failure, and no price that it never agreed to
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "capacity_exhausted"
        await until_none_has_slots(gateway)
    assert (await gateway.chat()).status_code == 200


@contextmanager
def billing_with(folder: Path, records: Records) -> Iterator[tuple[Billing, Holds]]:
    """A gateway's billing that knows these records, and its holds."""
    database = SqliteDatabase(folder / "none.db")
    directory = LiveDirectory(SqlAccounts(database))
    directory.current = Directory.of(records)

    async def nothing(limit: Limit, window: int) -> int:
        return 0

    holds = Holds(MemoryLimits(lambda: 0.0), nothing)
    outbox = FileOutbox(folder / "outbox")
    yield Billing(directory, outbox, holds, CacheSalts(b"")), holds
    outbox.close()
    database.close()


def asked() -> Run:
    request = decode_chat_request(json.dumps(chat(max_tokens=1000)).encode(), SchemaBounds())
    return Run("r", chat_operation(request), ApiKey("k", "t", b"", 0.0), 0.0, 1.0)


@pytest.mark.parametrize("begun", [True, False])
async def test_a_hold_is_as_large_as_where_the_request_may_be_served_is_dear(
    tmp_path: Path, begun: bool
):
    reservation = Reservation("res", "t", MODEL, 2, 0.0, 0, Period.HOUR, 0.0, spill=False)
    price = Price(
        model=MODEL, version=1, effective_from=0.0, prompt=10**6, cached_prompt=0,
        completion=10**6, reasoning=10**6,
    )  # fmt: skip
    budget = Limit("b", LimitKind.BUDGET_TOTAL, 10**9, tenant="t")
    records = Records(prices=[price], limits=[budget], reservations=[reservation])
    with billing_with(tmp_path, records) as (billing, _):
        run = asked()
        await billing.admit(run, models()[0], lambda reservation: begun)
    assert run.account is not None
    assert run.account.hold is not None
    (demand,) = run.account.hold.ask.demands
    assert (run.may_share, demand.amount >= 10**6) == ((False, False) if begun else (True, True))


@pytest.mark.parametrize("order", [(1, 20), (20, 1)])
async def test_where_all_reservations_owe_the_soonest_is_told_and_all_are_named(
    tmp_path: Path, order: tuple[int, int]
):
    """Of twenty tokens a second and of one; each owes eighty."""
    reservations = [
        Reservation(
            f"res_{rate}", "t", MODEL, 2, 0.0, 0, Period.HOUR, 0.0, spill=False,
            tokens_per_second=rate,
        )
        for rate in order
    ]  # fmt: skip
    with billing_with(tmp_path, Records(reservations=reservations)) as (billing, holds):
        for each in reservations:
            assert each.output_limit is not None
            hold = await holds.take(each.id, [each.output_limit], tokens=1, cost=0)
            assert hold is not None
            drawn = each.output_limit.most + 80
            holds.settle(hold, tokens=1, cost=0, output=drawn, pool=each.pool)
        await holds.drain()
        with pytest.raises(ReservationExhausted) as caught:
            await billing.admit(asked(), models()[0], lambda reservation: True)
    assert caught.value.retry_after == pytest.approx(4)
    assert caught.value.details["reservations"] == [each.id for each in reservations]
    assert caught.value.details["tokens_per_second"] == 20
    assert "res_20" in caught.value.headers["x-ratelimit-name"]


async def test_gateways_draw_the_tokens_of_a_reservation_from_one_bucket(
    start_gateway: StartGateway, engine: MockEngine, redis_server: RedisServer, tmp_path: Path
):
    billing = BillingOptions(f"sqlite:{tmp_path / 'prime.db'}", redis=redis_server.url)
    options: dict[str, Any] = {"slots": 8, "tokens_per_second": 800, "billing": billing}
    gateways = [
        await start_gateway(engine, redis_url=redis_server.url, **options) for _ in range(2)
    ]
    engine.behave("answer-20")
    tenant, own = await team(gateways[0])
    made = await reserve(gateways[0], tenant, 4, tokens_per_second=1, spill=False)
    members = [replace(gateway, key=own.key) for gateway in gateways]
    served, refused = 0, [0, 0]
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        while min(refused) < 3:
            for number, member in enumerate(members):
                answer = await member.chat()
                served += answer.headers.get("x-prime-pool") == f"reserved:{made['id']}"
                refused[number] += answer.headers.get("x-prime-over") == "tokens_per_second"
                await asyncio.sleep(0.05)  # what was drawn is told in the background
    most = 60 + (loop.time() - began) * 1  # a minute's worth, and what came in since
    assert 60 <= served * 20 <= most + 2 * 20  # the last of each gateway may owe


async def test_lent_slots_come_back_and_their_requests_go_on_elsewhere_or_are_told(
    gateway: RunningGateway, engine: MockEngine, spare: MockEngine
):
    tenant, own = await team(gateway)
    made = await reserve(gateway, tenant, 4, datacenters=["dc-0"])
    await until_active(gateway, own)
    for each in (engine, spare):
        each.behave("slow-first-60000ms.answer-2")
    crowd = [asyncio.create_task(gateway.chat()) for _ in range(7)]
    async with asyncio.timeout(15):
        while len(engine.requests) + len(spare.requests) < 7:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    engine.behave("slow-first-1000ms.answer-2")
    began = asyncio.get_running_loop().time()
    answers = await asyncio.gather(*(own.chat() for _ in range(4)))
    assert [each.status_code for each in answers] == [200] * 4
    assert {each.headers["x-prime-pool"] for each in answers} == {f"reserved:{made['id']}"}
    assert asyncio.get_running_loop().time() - began < 10
    assert await gateway.metric("prime_slots_recalled_total", deployment="engine-0") >= 1
    assert await gateway.metric("prime_reserved_slots", deployment="engine-0") == 4
    for task in crowd:
        task.cancel()
    ended = await asyncio.gather(*crowd, return_exceptions=True)
    refused = [each for each in ended if not isinstance(each, BaseException)]
    assert {each.status_code for each in refused} <= {200, 503}


async def test_an_end_never_makes_a_reservation_longer(gateway: RunningGateway):
    tenant, _ = await team(gateway)
    made = await reserve(gateway, tenant, 1, to="2099-01-01T00:00:00Z")
    path = f"reservations/{made['id']}/end"
    for later in ("2099-01-01T00:00:01Z", "2100-01-01T00:00:00Z"):
        refused = await gateway.admin_response("POST", path, {"at": later})
        assert refused.status_code == 400
    await gateway.admin("POST", path, {"at": "2098-01-01T00:00:00Z"})


async def test_a_prepaid_team_pays_a_reservation_s_first_period_in_advance(
    gateway: RunningGateway,
):
    tenant, _ = await team(gateway)
    await gateway.admin("PUT", f"tenants/{tenant}/payment", {"payment": "prepaid"})
    wanted = {"tenant": tenant, "model": MODEL, "slots": 1, "price_usd": "12.5"}
    credit = {"tenant": tenant, "reference": "c1", "amount_usd": "12.49"}
    await gateway.admin("POST", "credits", credit)
    assert (await gateway.admin_response("POST", "reservations", wanted)).status_code == 402
    await gateway.admin("POST", "credits", {**credit, "reference": "c2", "amount_usd": "0.01"})
    await gateway.admin("POST", "reservations", wanted)
