"""`prime inference limits`: rates, concurrency and budgets."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.options import Command, Group, NewModel, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Terminal

ONE = "{id, kind, limit, key_id, tenant, model, resets_at}"
LIMITS = json_help(f"{{limits: [{ONE}]}}")
LIMIT = json_help(ONE)
GONE = json_help("{id}")
KINDS = (
    "requests_per_minute, tokens_per_minute, concurrency, budget_daily, budget_weekly,"
    " budget_monthly or budget_total"
)

app = typer.Typer(cls=Group, no_args_is_help=True, help="Rates, concurrency and budgets.")


@app.callback()
def group(plain: Plain = False) -> None:
    """Rates, concurrency and budgets."""


@app.command("list", cls=Command, epilog=LIMITS)
def list_limits(output: TableOrJson = "table", plain: Plain = False) -> None:
    """List every limit.

    Examples:
      prime inference limits list
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get("limits")
    columns = ("id", "kind", "limit", "key_id", "tenant", "model")
    print_rows(Terminal(plain=plain), output, found, "Limits", found["limits"], columns)


@app.command("add", cls=Command, epilog=LIMIT)
def add(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=KINDS)],
    most: Annotated[str, typer.Argument(metavar="MOST", help="A count; of a budget, US dollars.")],
    key: Annotated[str | None, typer.Option("--key", help="Of this key.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="Of this tenant.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Of this model.")] = None,
    new_model: NewModel = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Limit the requests that match all that is named; without a name, all of them.

    Examples:
      prime inference limits add budget_monthly 100 --team team_0123456789abcdef
      prime inference limits add requests_per_minute 600 --model acme/large --key a1B2c3D4e5F6
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    if kind.startswith("budget_"):
        amount: dict[str, object] = {"most_usd": most}
    elif most.isascii() and most.isdecimal():
        amount = {"most": int(most)}
    else:
        raise WrongUsage(f"MOST is a whole number for {kind}, not {most!r}.")
    made = AdminClient().post(
        "limits", kind=kind, key=key, tenant=team, model=model, new_model=new_model, **amount
    )
    print_fields(Terminal(plain=plain), output, made)


@app.command("remove", cls=Command, epilog=GONE)
def remove(
    limit: Annotated[str, typer.Argument(metavar="LIMIT", help="The limit's id.")],
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Remove a limit.

    Examples:
      prime inference limits remove lim_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    print_fields(Terminal(plain=plain), output, AdminClient().delete(f"limits/{limit}"))
