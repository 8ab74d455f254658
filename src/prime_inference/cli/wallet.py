"""`prime wallet`: one's own balance, asked with one's own key."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_inference.cli.ledger import WALLET as EPILOG
from prime_inference.cli.ledger import print_wallet
from prime_inference.cli.options import Plain, TableOrJson
from prime_inference.cli.terminal import Terminal

__all__ = ["EPILOG", "wallet"]


def wallet(
    limit: Annotated[
        int, typer.Option("--num", "-n", min=1, max=1000, help="Transfers to show.")
    ] = 20,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Transfers to skip.")] = 0,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Show the balance of the account, or of the team, that your key bills.

    Examples:
      prime wallet
      PRIME_TEAM_ID=team_0123456789abcdef prime wallet
    """
    from prime_inference.cli.client import InferenceClient
    from prime_inference.cli.settings import current_settings

    with InferenceClient(current_settings()) as client:
        found = client.get("/billing/wallet", limit=limit, offset=offset)
    print_wallet(Terminal(plain=plain), output, found)
