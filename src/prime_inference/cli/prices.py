"""`prime inference prices`: what models cost, from when on."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_inference.cli.options import Command, Group, NewModel, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Terminal

ONE = (
    "{model, version, effective_from, prompt_usd_per_mtok, cached_prompt_usd_per_mtok,"
    " completion_usd_per_mtok, reasoning_usd_per_mtok, request_usd_per_thousand,"
    " batch_discount_percent}"
)
PRICES = json_help(f"{{prices: [{ONE}]}}")
PRICE = json_help(f"{ONE}, and preview: what a sample request costs")

app = typer.Typer(cls=Group, no_args_is_help=True, help="What models cost, from when on.")


@app.callback()
def group(plain: Plain = False) -> None:
    """What models cost, from when on."""


@app.command("list", cls=Command, epilog=PRICES)
def list_prices(
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """List every version of every price.

    Examples:
      prime inference prices list
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get("prices", model=model)
    columns = (
        "model", "version", "effective_from", "prompt_usd_per_mtok", "cached_prompt_usd_per_mtok",
        "completion_usd_per_mtok",
    )  # fmt: skip
    print_rows(Terminal(plain=plain), output, found, "Prices", found["prices"], columns)


@app.command("set", cls=Command, epilog=PRICE)
def set_price(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model id.")],
    prompt: Annotated[
        str, typer.Option("--input", metavar="USD", help="Per million prompt tokens.")
    ],
    completion: Annotated[
        str, typer.Option("--output-tokens", metavar="USD", help="Per million completion tokens.")
    ],
    cached: Annotated[
        str | None, typer.Option("--cached", metavar="USD", help="Per million cached tokens.")
    ] = None,
    reasoning: Annotated[
        str | None, typer.Option("--reasoning", metavar="USD", help="Per million of those.")
    ] = None,
    request: Annotated[
        str, typer.Option("--request", metavar="USD", help="Per thousand requests.")
    ] = "0",
    batch_discount: Annotated[
        float, typer.Option("--batch-discount", metavar="PERCENT", min=0, max=100)
    ] = 0.0,
    effective_from: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="When it begins, ISO 8601. Default: now."),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Set it although it looks wrong.")
    ] = False,
    new_model: NewModel = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Set the price of a model. One that looks a million times off is refused first.

    Examples:
      prime inference prices set acme/large --input 0.5 --output-tokens 1.5 --cached 0.05
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().post(
        "prices",
        model=model,
        prompt=prompt,
        completion=completion,
        cached_prompt=cached,
        reasoning=reasoning,
        request=request,
        batch_discount_percent=batch_discount,
        effective_from=effective_from,
        confirm=confirm,
        new_model=new_model,
    )
    print_fields(Terminal(plain=plain), output, made)
