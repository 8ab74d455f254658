"""A new team from nothing to its bill, with the commands of the README against a real gateway."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from prime_inference.cli.main import app
from prime_inference.cli.usage import bars, csv_text
from tests.gateway.processes import child

MODEL = "acme/echo-1"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("accounts")
    with (
        child(folder, "engine", "mock-engine", "--context-tokens", "4096") as engine,
        child(
            folder,
            "gateway",
            "gateway",
            *("--upstream", engine["base_url"], "--model-id", MODEL, "--context-tokens", "4096"),
            *("--port", "0", "--control-port", "0", "--state-dir", str(folder / "state")),
            *("--database", "sqlite"),
        ) as gateway,
    ):
        yield {**gateway, "state": folder / "state"}


def prime(gateway: dict[str, Any], *args: str, code: int = 0, **environ: str) -> Any:
    """Run `prime ARGS -o json` as on the gateway's machine; its JSON, or the error's."""
    gone = {name: None for name in os.environ if name.startswith(("PRIME_", "XDG_"))}
    home = {"HOME": str(gateway["state"]), "PRIME_STATE_DIR": str(gateway["state"])}
    result = CliRunner().invoke(app, [*args, "-o", "json"], env={**gone, **home, **environ})
    assert result.exit_code == code, result.output
    return json.loads(result.stderr if code else result.stdout)


def ask(gateway: dict[str, Any], key: str, **options: Any) -> Any:
    client = openai.OpenAI(
        base_url=gateway["base_url"], api_key=key, max_retries=0, **options
    )  # fmt: skip
    with client:
        return client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=10
        )


def test_a_new_team_spends_reads_its_bill_hits_its_budget_and_rotates_its_key(
    gateway: dict[str, Any],
):
    prime(
        gateway, "inference", "prices", "set", MODEL, "--input", "1", "--output-tokens", "2"
    )  # fmt: skip
    team = prime(gateway, "teams", "create", "Acme Robotics", "--slug", "acme")["teamId"]
    made = prime(gateway, "inference", "keys", "create", "laptop", "--team", team)
    prime(gateway, "inference", "ledger", "credit", team, "20", "--reference", "invoice-1")

    answer = ask(gateway, made["key"])
    cost = Decimal(str(answer.usage.cost))
    assert cost > 0

    own = {"PRIME_API_KEY": made["key"], "PRIME_INFERENCE_URL": gateway["base_url"]}
    for _ in range(100):  # the books follow within a second
        bill = prime(gateway, "wallet", **own)
        if len(bill["recent_billings"]) == 2:
            break
        time.sleep(0.05)
    assert Decimal(bill["balance_usd_text"]) == 20 - cost
    usage = prime(gateway, "inference", "usage", "--by", "team,model", "--team", team)
    (row,) = usage["data"]
    assert (row["tenant"], row["model"], row["requests"]) == (team, MODEL, 1)
    assert Decimal(row["cost_usd"]) == cost

    limit = prime(
        gateway, "inference", "limits", "add", "budget_daily", str(cost), "--team", team
    )  # fmt: skip
    with pytest.raises(openai.APIStatusError) as refused:
        ask(gateway, made["key"])
    assert refused.value.status_code == 402
    assert refused.value.response.headers["x-ratelimit-remaining"] == "0.00"
    prime(gateway, "inference", "limits", "remove", limit["id"])

    rotated = prime(gateway, "inference", "keys", "rotate", made["id"], "--overlap-hours", "0")
    assert ask(gateway, rotated["key"]).usage.cost == float(cost)
    with pytest.raises(openai.AuthenticationError):
        ask(gateway, made["key"])
    prime(gateway, "inference", "keys", "revoke", made["id"])
    with pytest.raises(openai.AuthenticationError):
        ask(gateway, rotated["key"])

    assert prime(gateway, "inference", "ledger", "verify")["sound"]
    actors = {entry["actor"] for entry in prime(gateway, "inference", "ledger", "audit")["entries"]}
    assert any(actor.startswith("admin:") for actor in actors)


def test_a_person_bills_the_team_he_is_a_member_of(gateway: dict[str, Any]):
    team = prime(gateway, "teams", "create", "Blue", "--slug", "blue")["teamId"]
    person = prime(gateway, "teams", "create-person", "Ann Lee", "--slug", "ann")["userId"]
    prime(gateway, "teams", "add", team, person)
    made = prime(gateway, "inference", "keys", "create", "own", "--team", person)
    ask(gateway, made["key"], default_headers={"X-Prime-Team-ID": team})
    members = prime(gateway, "teams", "members", team)["members"]
    assert members == [{"userId": person, "name": "Ann Lee", "role": "member"}]
    prime(gateway, "teams", "remove", team, person)
    with pytest.raises(openai.PermissionDeniedError):
        ask(gateway, made["key"], default_headers={"X-Prime-Team-ID": team})


def test_an_operator_reserves_slots_and_the_team_sees_and_pays_them(gateway: dict[str, Any]):
    team = prime(gateway, "teams", "create", "Green", "--slug", "green")["teamId"]
    key = prime(gateway, "inference", "keys", "create", "k", "--team", team)["key"]
    reservations = ("inference", "reservations")
    wanted = ("create", MODEL, "8", "--team", team, "--price", "12.5", "--no-spill")
    made = prime(gateway, *reservations, *wanted)
    assert (made["slots"], made["state"], made["spill"]) == (8, "active", False)
    assert prime(gateway, *reservations, "show", made["id"]) == made
    listed = prime(gateway, *reservations, "list", "--team", team)
    assert listed["reservations"] == [made]
    own = {"PRIME_API_KEY": key, "PRIME_INFERENCE_URL": gateway["base_url"]}
    assert prime(gateway, *reservations, "list", "--own", **own) == listed
    for _ in range(200):
        bill = prime(gateway, "wallet", **own)
        if bill["recent_billings"]:
            break
        time.sleep(0.05)
    assert bill["balance_usd_text"] == "-12.50"
    too_many = ("create", MODEL, "1000000", "--team", team, "--price", "1")
    error = prime(gateway, *reservations, *too_many, code=1)["error"]
    assert "can be reserved" in error["message"]
    assert prime(gateway, *reservations, "end", made["id"])["state"] == "ended"

    ask(gateway, prime(gateway, "inference", "keys", "create", "k", "--team", team)["key"])
    httpx.get(f"{gateway['control_url']}/metrics", trust_env=False)  # what is gathered is counted
    fast = ("create", MODEL, "2", "--team", team, "--price", "1", "--tokens-per-second")
    made = prime(gateway, *reservations, *fast, "1")
    assert (made["tokens_per_second"], made["carries_tokens_per_second"] > 1) == (1, True)
    error = prime(gateway, *reservations, *fast, "1000000000", code=1)["error"]
    assert "slots carry" in error["message"]


def test_what_goes_wrong_is_said_in_one_error(gateway: dict[str, Any], tmp_path: Path):
    error = prime(
        gateway, "inference", "keys", "revoke", "nothing", code=1
    )["error"]  # fmt: skip
    assert "nothing" in error["message"]
    wrong = ("prices", "set", MODEL, "--input", "1000000", "--output-tokens", "2")
    assert "would cost" in prime(gateway, "inference", *wrong, code=1)["error"]["message"]
    nobody = prime(gateway, "teams", "list", code=1, PRIME_STATE_DIR=str(tmp_path))
    assert nobody["error"]["code"] == "nothing_answers"


@pytest.mark.parametrize("days", ["inf", "nan", "-1", "1e9"])
def test_no_key_ends_at_a_time_that_is_none(gateway: dict[str, Any], days: str):
    home = {"HOME": str(gateway["state"]), "PRIME_STATE_DIR": str(gateway["state"])}
    args = ["inference", "keys", "create", "k", "--team", "local", "--expires-in-days", days]
    result = CliRunner().invoke(app, args, env=home)
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)  # no traceback


def test_usage_as_csv_and_as_bars():
    rows = [
        {"day": "2026-01-01", "model": "a,b", "requests": 1, "cost_usd": "0.50"},
        {"day": "2026-01-02", "model": "c", "requests": 2, "cost_usd": "1.00"},
    ]
    assert csv_text(["day", "model", "cost_usd"], rows) == (
        'day,model,cost_usd\n2026-01-01,"a,b",0.50\n2026-01-02,c,1.00\n'
    )
    short, long = bars(["day"], rows)
    assert long.count("█") == 2 * short.count("█") == 40
    assert bars(["day"], []) == []
