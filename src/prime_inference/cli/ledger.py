"""`prime inference ledger`: the books, and the proof that they are right."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_inference.cli.failures import CommandFailed
from prime_inference.cli.options import Command, Group, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Terminal

VERIFY = json_help(
    "{sound, events, transfers, accounts, event_cost_usd, revenue_usd, problems: [text],"
    " audit_broken_at, audit_entries, audit_head}; exit code 1 unless it is sound"
)
MOVED = json_help("{reference, fresh, balance_usd}; fresh is false for a repetition")
WALLET = json_help(
    "{wallet_id, team_id, balance_usd, currency, total_billings, recent_billings: [{id,"
    " created_at, amount_usd, currency, resource_type, resource_id, memo}]}"
)
STATEMENT = json_help(
    "{tenant, month, lines: [{model, pool, requests, prompt_tokens, cached_tokens,"
    " completion_tokens, reasoning_tokens, cost_usd}], usage_usd, transfers: [{kind, reference,"
    " amount_usd, about, memo}], reservations_usd,"
    " credits_and_adjustments_usd, total_due_usd}"
)
AUDIT = json_help("{entries: [{place, at, actor, action, subject, detail, previous, hash}]}")

STATEMENT_SUMS = (
    "usage_usd", "reservations_usd", "credits_and_adjustments_usd", "total_due_usd",
)  # fmt: skip

app = typer.Typer(cls=Group, no_args_is_help=True, help="The books, and the proof of them.")
Tenant = Annotated[str, typer.Argument(metavar="TEAM", help="A team's or person's id.")]
Amount = Annotated[str, typer.Argument(metavar="USD", help="US dollars.")]
Reference = Annotated[
    str, typer.Option("--reference", help="Its id: repeating the command moves nothing twice.")
]
Memo = Annotated[str, typer.Option("--memo", help="A line for whoever reads the bill.")]


class BooksUnsound(CommandFailed):
    """The ledger does not add up; the output says where."""

    code = "ledger_unsound"


@app.callback()
def group(plain: Plain = False) -> None:
    """The books, and the proof of them."""


@app.command("verify", cls=Command, epilog=VERIFY)
def verify(output: TableOrJson = "table", plain: Plain = False) -> None:
    """Prove that events, transfers, balances and sums are the same.

    Examples:
      prime inference ledger verify
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    found = AdminClient().get("ledger/verify")
    print_fields(Terminal(plain=plain), output, found)
    if not found["sound"]:
        raise BooksUnsound("The ledger does not add up.")


@app.command("credit", cls=Command, epilog=MOVED)
def credit(
    tenant: Tenant,
    amount: Amount,
    reference: Reference,
    memo: Memo = "",
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Write down a payment.

    Examples:
      prime inference ledger credit team_0123456789abcdef 250 --reference invoice-17
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    moved = AdminClient().post(
        "credits", tenant=tenant, amount_usd=amount, reference=reference, memo=memo
    )
    print_fields(Terminal(plain=plain), output, moved)


@app.command("adjust", cls=Command, epilog=MOVED)
def adjust(
    tenant: Tenant,
    amount: Amount,
    reference: Reference,
    about: Annotated[str, typer.Option("--about", help="The generation it is about.")] = "",
    memo: Memo = "",
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Give something back, or take it (after `--`, a negative amount). Nothing is changed.

    Examples:
      prime inference ledger adjust team_0123456789abcdef 1.25 --reference ticket-9
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    moved = AdminClient().post(
        "adjustments",
        tenant=tenant,
        amount_usd=amount,
        reference=reference,
        about=about,
        memo=memo,
    )
    print_fields(Terminal(plain=plain), output, moved)


@app.command("show", cls=Command, epilog=WALLET)
def show(
    tenant: Tenant,
    limit: Annotated[int, typer.Option("--num", "-n", min=1, max=1000)] = 20,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Show a tenant's balance and its latest transfers.

    Examples:
      prime inference ledger show team_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient

    print_wallet(Terminal(plain=plain), output, AdminClient().get(f"wallet/{tenant}", limit=limit))


@app.command("statement", cls=Command, epilog=STATEMENT)
def statement(
    tenant: Tenant,
    month: Annotated[str, typer.Argument(metavar="MONTH", help="As 2026-12.")],
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Show a tenant's bill for a month.

    Examples:
      prime inference ledger statement team_0123456789abcdef 2026-12
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get(f"statements/{tenant}/{month}")
    terminal = Terminal(plain=plain)
    columns = ("model", "pool", "requests", "prompt_tokens", "completion_tokens", "cost_usd")
    print_rows(terminal, output, found, f"Statement {month}", found["lines"], columns)
    if output != "json":
        for name in STATEMENT_SUMS:
            terminal.line(f"{name.removesuffix('_usd').replace('_', ' ')}: ${found[name]}")


@app.command("audit", cls=Command, epilog=AUDIT)
def audit(
    limit: Annotated[int, typer.Option("--num", "-n", min=1)] = 100,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Show who changed what. `verify` proves that no entry is gone.

    Examples:
      prime inference ledger audit
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get("audit", limit=limit)
    columns = ("place", "actor", "action", "subject", "detail")
    print_rows(Terminal(plain=plain), output, found, "Audit log", found["entries"], columns)


def print_wallet(terminal: Terminal, output: str, wallet: dict[str, object]) -> None:
    """A balance and what moved it."""
    from prime_inference.cli.admin_client import print_rows

    if output != "json":
        terminal.line(f"Balance of {wallet['team_id']}: ${wallet['balance_usd_text']}")
    rows = wallet["recent_billings"]
    assert isinstance(rows, list)
    columns = ("created_at", "resource_type", "amount_usd_text", "id", "memo")
    print_rows(terminal, output, wallet, "Transfers", rows, columns)
