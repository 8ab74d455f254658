"""One truth about prices: the price book; the fleet file fills it where it has nothing."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from prime_inference.compose import BillingOptions
from prime_inference.domain.errors import CannotStart
from prime_inference.domain.models import Model, Pricing
from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .followed_file import FollowedFile, started
from .running import MODEL, OTHER_MODEL, RunningGateway, models

PRICED = Pricing("1", "2", "0.1")
SQLITE = "sqlite:{}"


def priced(pricing: Pricing = PRICED) -> list[Model]:
    return [replace(models()[0], pricing=pricing), models()[1]]


async def shown_and_charged(gateway: RunningGateway) -> tuple[float, float]:
    """Dollars per million completion tokens: at /models, and by the cost that an answer tells."""
    shown = (await gateway.get(f"/models/{MODEL}")).json()["pricing"]
    usage = (await gateway.chat()).json()["usage"]
    prompt = usage["prompt_tokens"] * shown["input_usd_per_mtok"]
    charged = (usage["cost"] * 1_000_000 - prompt) / usage["completion_tokens"]
    return shown["output_usd_per_mtok"], round(charged, 6)


async def test_a_price_of_the_fleet_file_is_published_shown_and_charged(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, billing=BillingOptions("sqlite"), catalog_models=priced())
    assert await shown_and_charged(gateway) == (2.0, 2.0)
    (published,) = (await gateway.admin("GET", "prices"))["prices"]
    assert (published["model"], published["version"]) == (MODEL, 1)
    assert published["cached_prompt_usd_per_mtok"] == "0.1"
    (entry,) = [
        entry
        for entry in (await gateway.admin("GET", "audit"))["entries"]
        if entry["action"] == "price.add"
    ]
    assert (entry["actor"], entry["subject"]) == ("fleet file", MODEL)


async def test_where_the_price_book_has_a_price_it_stands_and_the_conflict_is_told(
    start_gateway: StartGateway,
    engine: MockEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    books = BillingOptions(SQLITE.format(tmp_path / "books.db"))
    await start_gateway(engine, billing=books, catalog_models=priced())
    caplog.clear()
    with caplog.at_level(logging.INFO):
        same = await start_gateway(engine, billing=books, catalog_models=priced())
        assert "price" not in caplog.text
        other = priced(Pricing("1", "3", "0.1"))
        changed = await start_gateway(engine, billing=books, catalog_models=other)
    assert "not what is charged" in caplog.text
    assert "completion $3 there, but" in caplog.text
    assert "completion $2 by version 1" in caplog.text
    for gateway in (same, changed):
        assert await shown_and_charged(gateway) == (2.0, 2.0)


async def test_without_accounts_the_file_is_shown_and_nobody_is_charged(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, catalog_models=priced())
    shown = (await gateway.get(f"/models/{MODEL}")).json()["pricing"]
    assert shown["output_usd_per_mtok"] == 2.0
    assert "cost" not in (await gateway.chat()).json()["usage"]


@pytest.mark.parametrize(
    ("pricing", "reason"),
    [
        (Pricing("1000000", "2", "0.1"), "more than any model costs"),
        (Pricing("1", "0", "0.1"), "is free"),
        (Pricing("1e9", "2", "0.1"), "No token costs more"),
    ],
)
async def test_a_price_that_looks_wrong_is_not_published_by_a_file(
    start_gateway: StartGateway, engine: MockEngine, pricing: Pricing, reason: str
):
    with pytest.raises(CannotStart, match=reason):
        await start_gateway(
            engine, billing=BillingOptions("sqlite"), catalog_models=priced(pricing)
        )


async def test_a_model_that_comes_later_brings_its_price_or_does_not_come(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one")
    gateway = await started(start_gateway, fleet, billing=BillingOptions("sqlite"))
    model = f'[[models]]\nid = "{OTHER_MODEL}"\nrevision = "r2"\ncontext_tokens = 4096\n'
    fleet.write("one", more=f'{model}pricing = {{ prompt = "5000000", completion = "2" }}\n')
    await fleet.taken(0, refused=1)
    assert fleet.live is not None
    assert "is not published" in str(fleet.live.error)
    fleet.write("one", more=f'{model}pricing = {{ prompt = "5", completion = "2" }}\n')
    await fleet.taken(1, refused=1)
    (published,) = (await gateway.admin("GET", "prices"))["prices"]
    assert (published["model"], published["prompt_usd_per_mtok"]) == (OTHER_MODEL, "5")
    assert published["cached_prompt_usd_per_mtok"] == "5"  # not said: as prompt
