"""`prime inference models`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.cli.models import price_text, sort_models, token_count

from .conftest import Prime
from .scripted_server import MODELS, ScriptedServer


def ids(output: str) -> list[str]:
    return [row["id"] for row in json.loads(output)["data"]]


def test_json_is_the_servers_list_with_hosted_models_first(prime: Prime):
    result = prime("inference", "models", "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert document["object"] == "list"
    assert sorted(document["data"], key=lambda row: row["created"]) == MODELS
    assert ids(result.stdout) == ["acme/medium", "acme/large", "zeta/small"]


def test_search_takes_any_case_and_part_of_an_id(prime: Prime):
    assert ids(prime("inference", "models", "-q", "ACME/L", "-o", "json").stdout) == ["acme/large"]


@pytest.mark.parametrize(
    ("sort", "order", "expected"),
    [
        ("id", "desc", ["zeta/small", "acme/large"]),
        ("input", "asc", ["acme/large", "zeta/small"]),
        ("output", "desc", ["acme/large", "zeta/small"]),
    ],
)
def test_sorts_by_id_and_price(prime: Prime, sort: str, order: str, expected: list[str]):
    result = prime("inference", "models", "-s", sort, "-d", order, "-o", "json")
    assert ids(result.stdout) == ["acme/medium", *expected]


def test_the_table_has_a_column_for_what_some_model_has(prime: Prime):
    lines = prime("inference", "models").stdout.splitlines()
    assert lines[0].split("  ")[0] == "id"
    for title in ("name", "serving", "input $/1M tok", "cache r/w $/1M tok", "context", "max out"):
        assert title in lines[0]
    large = next(line for line in lines if line.startswith("acme/large"))
    for cell in ("Acme [bold]Large", "Gateway", "$0.1", "$2.5", "$0 / —", "1.05M", "65.5k"):
        assert cell in large


def test_the_table_leaves_out_what_no_model_has(prime: Prime, server: ScriptedServer):
    server.models = {"object": "list", "data": [{"id": "only/one"}]}
    header, row = prime("inference", "models").stdout.splitlines()
    assert header.split() == ["id", "input", "$/1M", "tok", "output", "$/1M", "tok"]
    assert row.split() == ["only/one", "-", "-"]


def test_models_are_listed_without_a_key(prime: Prime, server: ScriptedServer):
    result = prime("inference", "models", PRIME_API_KEY=None, PRIME_TEAM_ID="team-7")
    assert result.exit_code == 0
    assert "authorization" not in server.requests[0].headers
    assert "x-prime-team-id" not in server.requests[0].headers


def test_no_match_is_said_on_stderr(prime: Prime):
    result = prime("inference", "models", "-q", "nothing-like-it")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "nothing-like-it" in result.stderr


@pytest.mark.parametrize("listing", [[], {"data": 5}, {"data": [5]}, {"object": "list"}])
def test_a_list_that_is_none_is_an_error(prime: Prime, server: ScriptedServer, listing: Any):
    server.models = listing
    result = prime("inference", "models")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: The server's ")


@pytest.mark.parametrize("option", ["--sort", "--order", "--output"])
def test_a_value_that_is_no_choice_names_the_choices(prime: Prime, option: str):
    result = prime("inference", "models", option, "sideways")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {option} must be one of: ")


@given(st.lists(st.one_of(st.none(), st.floats(0, 1e6))), st.booleans())
def test_models_without_a_price_come_last_in_both_directions(
    prices: list[float | None], descending: bool
):
    rows = [
        {"id": str(number), "pricing": {"input_usd_per_mtok": price}}
        for number, price in enumerate(prices)
    ]
    in_order = [
        row["pricing"]["input_usd_per_mtok"]
        for row in sort_models(rows, "input", descending=descending)
    ]
    priced = [price for price in in_order if price is not None]
    assert priced == sorted((p for p in prices if p is not None), reverse=descending)
    assert in_order == priced + [None] * (len(prices) - len(priced))


@pytest.mark.parametrize(
    ("price", "text"), [(None, ""), (0.0, "$0"), (0.1, "$0.1"), (100.0, "$100"), (1e-7, "$0")]
)
def test_prices_lose_their_trailing_zeros(price: float | None, text: str):
    assert price_text(price) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(200_000, "200k"), (1_048_576, "1.05M"), (999, "999"), (0, "—"), (None, "—"), ("x", "—")],
)
def test_token_counts_are_short(count: object, text: str):
    assert token_count(count) == text
