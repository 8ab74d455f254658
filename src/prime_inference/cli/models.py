"""`prime inference models`: what a server serves, and for how much."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from prime_inference.cli.options import Plain, TableOrJson, json_help, one_of
from prime_inference.cli.terminal import Column, Terminal

Row = dict[str, Any]
"""A model as the server lists it."""

EPILOG = json_help(
    "{object: list, data: [{id, created?, display_name?, serving?, pricing?, specs?, ...}]};"
    " prices in US dollars per million tokens: pricing.input_usd_per_mtok,"
    " pricing.output_usd_per_mtok",
)
NOTHING = "—"
SERVING = {"hosted": "Hosted by Prime", "gateway": "Gateway"}
PRICE_KEYS = {"input": "input_usd_per_mtok", "output": "output_usd_per_mtok"}


def models(
    output: TableOrJson = "table",
    search: Annotated[
        str | None, typer.Option("--search", "-q", help="Only ids that hold this text.")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            "-s",
            metavar="id|input|output",
            help="Sort by id or by price; models without a price come last.",
            callback=one_of("--sort", "id", "input", "output"),
        ),
    ] = "id",
    order: Annotated[
        str,
        typer.Option(
            "--order",
            "-d",
            metavar="asc|desc",
            help="Direction of the sort.",
            callback=one_of("--order", "asc", "desc"),
        ),
    ] = "asc",
    plain: Plain = False,
) -> None:
    """List the models that the server serves.

    Examples:
      prime inference models
      prime inference models --search llama --sort output --order desc
      prime inference models -o json | jq -r '.data[].id'
    """
    from prime_inference.cli.client import InferenceClient
    from prime_inference.cli.settings import current_settings

    terminal = Terminal(plain=plain)
    with InferenceClient(current_settings()) as client:
        listing = client.models()
    rows = sort_models(matching(listing["data"], search), sort, descending=order == "desc")
    if output == "json":
        terminal.json({**listing, "data": rows})
    elif rows:
        terminal.table("Prime Inference - Models", *_table(rows))
    else:
        terminal.note("No models." if search is None else f"No model id holds {search!r}.")


def matching(rows: list[Row], search: str | None) -> list[Row]:
    """The models whose id holds `search`, in any case."""
    needle = (search or "").lower()
    return [row for row in rows if needle in str(row.get("id", "")).lower()]


def sort_models(rows: list[Row], sort: str, *, descending: bool) -> list[Row]:
    """By id or price; hosted models lead, and models without the price come last."""
    if sort == "id":
        rows = sorted(rows, key=lambda row: str(row.get("id", "")).lower(), reverse=descending)
    else:
        key = PRICE_KEYS[sort]
        priced = [row for row in rows if _price(row, key) is not None]
        unpriced = [row for row in rows if _price(row, key) is None]
        priced.sort(key=lambda row: _price(row, key) or 0.0, reverse=descending)
        rows = priced + unpriced
    return sorted(rows, key=lambda row: row.get("serving") != "hosted")


def _part(row: Row, name: str) -> Row:
    part = row.get(name)
    return part if isinstance(part, dict) else {}


def _price(row: Row, key: str) -> float | None:
    try:
        return float(_part(row, "pricing")[key])
    except (KeyError, TypeError, ValueError):
        return None


def _table(rows: list[Row]) -> tuple[list[Column], list[list[str]]]:
    """Columns and cells; an optional column is there only when some row fills it."""
    columns: list[tuple[Column, list[str]]] = [
        (Column("id", style="cyan"), [str(row.get("id", "")) for row in rows])
    ]
    if any(row.get("display_name") for row in rows):
        columns.append((Column("name"), [str(row.get("display_name") or NOTHING) for row in rows]))
    if any(row.get("serving") for row in rows):
        columns.append((Column("serving"), [_serving(row) for row in rows]))
    for name, key in PRICE_KEYS.items():
        prices = [price_text(_price(row, key)) for row in rows]
        columns.append((Column(f"{name} $/1M tok", "right", "green"), prices))
    cache = [_cache_prices(row) for row in rows]
    if any(cache):
        filled = [cell or NOTHING for cell in cache]
        columns.append((Column("cache r/w $/1M tok", "right", "green"), filled))
    if any(_part(row, "specs") for row in rows):
        columns += _spec_columns([_part(row, "specs") for row in rows])
    cells = [list(row) for row in zip(*(column[1] for column in columns), strict=True)]
    return [column[0] for column in columns], cells


def _spec_columns(specs: list[Row]) -> list[tuple[Column, list[str]]]:
    return [
        (Column("context", "right"), [token_count(spec.get("context_window")) for spec in specs]),
        (
            Column("max out", "right"),
            [token_count(spec.get("max_output_tokens")) for spec in specs],
        ),
        (
            Column("reasoning"),
            ["yes" if spec.get("supports_reasoning") else NOTHING for spec in specs],
        ),
    ]


def _serving(row: Row) -> str:
    serving = str(row.get("serving") or NOTHING)
    return SERVING.get(serving, serving)


def _cache_prices(row: Row) -> str:
    """Prices of reading and writing the cache; empty when there are none."""
    read = _price(row, "cache_read_usd_per_mtok")
    write = _price(row, "cache_write_usd_per_mtok")
    if read is None and write is None:
        return ""
    return f"{price_text(read) or NOTHING} / {price_text(write) or NOTHING}"


def price_text(price: float | None) -> str:
    """US dollars without trailing zeros: `$0.1`."""
    return "" if price is None else f"${price:.6f}".rstrip("0").rstrip(".")


def token_count(value: object) -> str:
    """A number of tokens, short: 200000 is `200k`, 1048576 is `1.05M`."""
    if not isinstance(value, int) or value <= 0:
        return NOTHING
    if value >= 1_000_000:
        return f"{value / 1_000_000:.2f}".rstrip("0").rstrip(".") + "M"
    if value >= 1_000:
        return f"{value / 1_000:.1f}".rstrip("0").rstrip(".") + "k"
    return str(value)
