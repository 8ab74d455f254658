"""Gateways that bill, as processes: killed under load, and three on one budget."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from prime_inference.engines.mock import MockEngine
from tests.redis_server import RedisServer

from .processes import COMMAND
from .running import MESSAGES, MODEL

PRICE = {"model": MODEL, "prompt": "1", "completion": "2"}
KILLS = 3
CLIENTS = 4


class BilledGateway:
    """A gateway process over a database; may be killed and started again."""

    def __init__(self, folder: Path, engine_url: str, *options: str) -> None:
        self._folder = folder
        self._arguments = [
            *COMMAND,
            "gateway",
            *("--upstream", engine_url, "--model-id", MODEL, "--context-tokens", "4096"),
            *("--port", "0", "--control-port", "0", "--state-dir", str(folder)),
            *options,
            *("--output", "json"),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.endpoint: dict[str, Any] = {}

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._arguments,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(self._folder)},
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.endpoint = json.loads(self._process.stdout.readline())

    def end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.endpoint['api_key']}"}

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        key = (self._folder / "admin_key").read_text().strip()
        response = httpx.request(
            method,
            f"{self.endpoint['control_url']}/admin/v1/{path}",
            json=body,
            headers={"authorization": f"Bearer {key}"},
            timeout=20,
        )
        assert response.status_code == 200, response.text
        return response.json()


@pytest_asyncio.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        yield client


async def whole_answers(
    client: httpx.AsyncClient, gateway: BilledGateway, costs: dict[str, Decimal], number: int
) -> None:
    """Ask without end; note the cost of every stream whose end was seen."""
    while True:
        number += CLIENTS
        body = {
            "model": MODEL,
            "messages": MESSAGES,
            "max_tokens": number % 30 + 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with contextlib.suppress(httpx.HTTPError):
            response = await client.post(
                f"{gateway.endpoint['base_url']}/chat/completions",
                json=body,
                headers=gateway.headers,
            )
            events = response.text.split("\n\n")
            if events[-2:] == ["data: [DONE]", ""]:
                usage = json.loads(events[-3].removeprefix("data: "))["usage"]
                identity = response.headers["x-request-id"]
                costs[identity] = Decimal(str(usage["cost"]))
        await asyncio.sleep(0)


async def test_a_gateway_killed_under_load_bills_every_whole_answer_once(
    tmp_path: Path, engine: MockEngine, client: httpx.AsyncClient
):
    gateway = BilledGateway(tmp_path / "state", engine.base_url, "--database", "sqlite")
    await asyncio.to_thread(gateway.start)
    await asyncio.to_thread(gateway.admin, "POST", "prices", PRICE)
    costs: dict[str, Decimal] = {}
    load = [
        asyncio.create_task(whole_answers(client, gateway, costs, number))
        for number in range(CLIENTS)
    ]
    try:
        for _ in range(KILLS):
            seen = len(costs)
            async with asyncio.timeout(20):
                while len(costs) < seen + 25:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(gateway.end, signal.SIGKILL)
            await asyncio.to_thread(gateway.start)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    async with asyncio.timeout(20):
        while float(await _outbox_bytes(client, gateway)) > 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    verified = await asyncio.to_thread(gateway.admin, "GET", "ledger/verify")
    wallet = await asyncio.to_thread(gateway.admin, "GET", "wallet/local?limit=1000")
    billed = {each["id"]: -Decimal(each["amount_usd_text"]) for each in wallet["recent_billings"]}
    await asyncio.to_thread(gateway.end, signal.SIGINT)
    assert verified["sound"], verified
    assert len(costs) >= KILLS * 25
    assert {identity: billed.get(identity) for identity in costs} == costs
    # a client that did not see the end: at most those that were running when it was killed
    assert len(billed) - len(costs) <= (KILLS + 1) * CLIENTS


async def _outbox_bytes(client: httpx.AsyncClient, gateway: BilledGateway) -> str:
    text = (await client.get(f"{gateway.endpoint['control_url']}/metrics")).text
    (line,) = [line for line in text.splitlines() if line.startswith("prime_outbox_bytes ")]
    return line.split()[1]


@pytest.mark.parametrize("store", ["with-redis", "redis-lost"])
async def test_three_gateways_never_spend_over_one_budget(
    tmp_path: Path,
    engine: MockEngine,
    client: httpx.AsyncClient,
    redis_server: RedisServer,
    store: str,
):
    database = f"sqlite:{tmp_path / 'prime.db'}"
    options = ("--database", database, "--redis", redis_server.url, "--replicas", "3")
    gateways = [
        BilledGateway(tmp_path / f"state-{number}", engine.base_url, *options)
        for number in range(3)
    ]
    try:
        for gateway in gateways:
            await asyncio.to_thread(gateway.start)
        first = gateways[0]
        await asyncio.to_thread(first.admin, "POST", "prices", PRICE)
        # ten requests at what each may cost at most; as much of it, when Redis is lost, as grace
        budget = Decimal("0.004") if store == "with-redis" else Decimal("0.4")
        made = await asyncio.to_thread(
            first.admin,
            "POST",
            "keys",
            {"tenant": "local", "name": "n", "spend_cap_usd": str(budget)},
        )
        if store == "redis-lost":
            redis_server.stop()
        headers = {"authorization": f"Bearer {made['key']}"}
        async with asyncio.timeout(15):
            for gateway in gateways:  # until each has heard of the key
                url = f"{gateway.endpoint['base_url']}/key"
                while (await client.get(url, headers=headers)).status_code != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        async def ask(number: int) -> int:
            body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 20}
            url = f"{gateways[number % 3].endpoint['base_url']}/chat/completions"
            return (await client.post(url, json=body, headers=headers)).status_code

        statuses = await asyncio.gather(*(ask(number) for number in range(200)))
        for gateway in gateways:
            await asyncio.to_thread(gateway.end, signal.SIGINT)
        await asyncio.to_thread(first.start)
        usage = await asyncio.to_thread(first.admin, "GET", f"usage?group_by=key&key={made['id']}")
        await asyncio.to_thread(first.end, signal.SIGINT)
    finally:
        for gateway in gateways:
            gateway.end(signal.SIGKILL)
    assert set(statuses) <= {200, 402}
    spent = sum((Decimal(row["cost_usd"]) for row in usage["data"]), Decimal(0))
    if store == "with-redis":
        assert 0 < spent <= budget
        assert statuses.count(200) >= 5
    else:
        assert 0 < spent <= budget / 100  # the stated grace
