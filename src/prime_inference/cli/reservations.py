"""`prime inference reservations`: slots of a model that a team has for itself."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from prime_inference.cli.options import Command, Group, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Terminal

ONE = (
    "{id, tenant, model, slots, tokens_per_second, carries_tokens_per_second, datacenters: [name],"
    " state, from, to, price_usd, period, spill, token_discount_percent, on: {<deployment>: slots}}"
)
STATES = "; state is scheduled, active or ended"
RESERVATIONS = json_help(f"{{reservations: [{ONE}], total_count}}{STATES}")
RESERVATION = json_help(f"{ONE}{STATES}")

Id = Annotated[str, typer.Argument(metavar="RESERVATION", help="The reservation's id.")]

app = typer.Typer(cls=Group, no_args_is_help=True, help="Slots that a team has for itself.")


@app.callback()
def group(plain: Plain = False) -> None:
    """Slots that a team has for itself."""


@app.command("list", cls=Command, epilog=RESERVATIONS)
def list_reservations(
    team: Annotated[str | None, typer.Option("--team", help="Only this tenant.")] = None,
    own: Annotated[
        bool, typer.Option("--own", help="Those of your key's account or team, asked with it.")
    ] = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """List reservations: everybody's as the operator, or your own with your API key.

    Examples:
      prime inference reservations list
      prime inference reservations list --team team_0123456789abcdef -o json
      PRIME_TEAM_ID=team_0123456789abcdef prime inference reservations list --own
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = _own() if own else AdminClient().get("reservations", tenant=team)
    columns = (
        "id", "tenant", "model", "slots", "tokens_per_second", "state", "from", "to", "price_usd",
        "period",
    )  # fmt: skip
    rows = found["reservations"]
    print_rows(Terminal(plain=plain), output, found, "Reservations", rows, columns)


@app.command("show", cls=Command, epilog=RESERVATION)
def show(reservation: Id, output: TableOrJson = "table", plain: Plain = False) -> None:
    """Show one reservation, how many slots each deployment has for it, and what they carry.

    Examples:
      prime inference reservations show res_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    found = AdminClient().get(f"reservations/{reservation}")
    print_fields(Terminal(plain=plain), output, found)


@app.command("create", cls=Command, epilog=RESERVATION)
def create(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model id.")],
    slots: Annotated[int, typer.Argument(metavar="SLOTS", min=1, help="Requests at a time.")],
    team: Annotated[str, typer.Option("--team", help="Whose it is.")],
    price: Annotated[str, typer.Option("--price", metavar="USD", help="Of each period.")],
    period: Annotated[str, typer.Option("--period", metavar="hour|month")] = "hour",
    datacenter: Annotated[
        list[str] | None,
        typer.Option("--datacenter", help="Only there; may be repeated. Default: anywhere."),
    ] = None,
    tokens_per_second: Annotated[
        int | None,
        typer.Option(
            "--tokens-per-second",
            min=1,
            help="Of output, over a minute; beyond it as beyond its slots. Default: any number.",
        ),
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="ISO 8601. Default: now.")
    ] = None,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="ISO 8601. Default: until it is ended."),
    ] = None,
    spill: Annotated[
        bool,
        typer.Option(
            "--spill/--no-spill",
            help="Requests over it use serverless slots at their price, or get a 429.",
        ),
    ] = True,
    discount: Annotated[
        float,
        typer.Option(
            "--token-discount",
            metavar="PERCENT",
            min=0,
            max=100,
            help="Off the token price of what its slots serve; 100: tokens are free.",
        ),
    ] = 100.0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Make it although its price looks wrong.")
    ] = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Reserve slots of a model for a team. Refused if the fleet has not as many to reserve, or if
    they do not carry the tokens per second.

    Examples:
      prime inference reservations create acme/large 8 --team team_0123456789abcdef --price 12.50
      prime inference reservations create acme/large 64 --team team_0123456789abcdef
        --price 9000 --period month --datacenter us-east --no-spill --tokens-per-second 2000
        --from 2027-01-01T00:00:00Z --to 2027-04-01T00:00:00Z
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    times = {"from": begin, "to": end}
    made = AdminClient().post(
        "reservations",
        tenant=team,
        model=model,
        slots=slots,
        price_usd=price,
        period=period,
        datacenters=datacenter or [],
        spill=spill,
        token_discount_percent=discount,
        tokens_per_second=tokens_per_second,
        confirm=confirm,
        **times,
    )
    print_fields(Terminal(plain=plain), output, made)


@app.command("end", cls=Command, epilog=RESERVATION)
def end_reservation(
    reservation: Id,
    at: Annotated[
        str | None, typer.Option("--at", metavar="TIME", help="ISO 8601. Default: now.")
    ] = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """End a reservation. Requests that it serves go on; a period that has begun is paid.

    Examples:
      prime inference reservations end res_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    ended = AdminClient().post(f"reservations/{reservation}/end", at=at)
    print_fields(Terminal(plain=plain), output, ended)


def _own() -> Any:
    from prime_inference.cli.client import InferenceClient
    from prime_inference.cli.settings import current_settings

    with InferenceClient(current_settings()) as client:
        return client.get("/reservations")
