"""`prime inference usage`: who used what, and what it cost."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any

import typer

from prime_inference.cli.options import Plain, json_help, one_of
from prime_inference.cli.terminal import Terminal

EPILOG = json_help(
    "{group_by: [name], data: [{<group>..., requests, prompt_tokens, cached_tokens,"
    " completion_tokens, reasoning_tokens, cost_usd}]}; cost_usd is exact decimal text",
)
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd")
BAR = "█"
BAR_CELLS = 40  # leaves room for the names in a terminal of 80


def usage(
    by: Annotated[
        str, typer.Option("--by", help="day, team, key, model, pool; several with commas.")
    ] = "day",
    team: Annotated[str | None, typer.Option("--team", help="Only this tenant.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only this key.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", metavar="DAY", help="First day, UTC, as 2026-12-31.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="DAY", help="Last day, UTC.")] = None,
    chart: Annotated[bool, typer.Option("--chart", help="Bars of the cost.")] = False,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="table|json|csv",
            help="How to print.",
            callback=one_of("--output", "table", "json", "csv"),
        ),
    ] = "table",
    plain: Plain = False,
) -> None:
    """Sum up usage by team, key, model, day and pool.

    Examples:
      prime inference usage
      prime inference usage --by team,model --from 2026-12-01 -o csv
      prime inference usage --by day --chart
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    query = {"from": first, "to": last}
    groups = by.replace("team", "tenant")
    found = AdminClient().get(
        "usage", group_by=groups, tenant=team, key=key, model=model, **query
    )  # fmt: skip
    names, rows = [*found["group_by"]], found["data"]
    terminal = Terminal(plain=plain)
    if output == "csv":
        terminal.line(csv_text([*names, *SUMS], rows).rstrip("\n"))
    elif chart and output == "table":
        for line in bars(names, rows):
            terminal.line(line)
    else:
        print_rows(terminal, output, found, "Usage", rows, [*names, *SUMS])


def csv_text(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """RFC 4180, one header line."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def bars(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line a row: its name, a bar as long as its cost, the cost."""
    costs = [Decimal(row["cost_usd"]) for row in rows]
    most = max(costs, default=Decimal(0)) or Decimal(1)
    labels = [" ".join(str(row[name]) for name in names) for row in rows]
    width = max(map(len, labels), default=0)
    return [
        f"{label.ljust(width)}  {BAR * round(cost / most * BAR_CELLS)} ${cost}"
        for label, cost in zip(labels, costs, strict=True)
    ]
