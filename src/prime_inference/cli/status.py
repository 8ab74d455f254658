"""`prime inference status`: datacenters and deployments as a gateway sees them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from prime_inference.cli.control_options import ControlStateDir, ControlUrl, connect
from prime_inference.cli.failures import CommandFailed
from prime_inference.cli.options import Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Column, Terminal

EPILOG = json_help(
    "{replica, replicas, degraded, error, store_error, changes: [{deployment, change, values}],"
    " datacenters: [{id, deployments, serving, slots, leased, in_flight}], models: [{id, revision,"
    " deployments, serving, waiting, tool_call_answers, tool_call_error_rate}], deployments: [{id,"
    " model, revision, datacenter, base_url, engine, state, breaker, cause, healthy, slots, leased,"
    " in_flight, flex_in_flight, lease_lapsed, p50_first_token_s, p99_first_token_s, error_rate,"
    " answered, failed, refused, tool_call_answers, tool_call_error_rate, tool_calls_behind}],"
    " caches: [{id, datacenter, cached, router_hits, host_hits, queue_s, transfer_s}], failing:"
    " {<task>: cause}, refused: {<deployment>: reason}, reservations: [{id, tenant, model, slots,"
    " in_flight, waiting, tokens_per_second, tokens_left}]}; one document a line with --watch",
)
CLEAR = "\x1b[H\x1b[2J"  # ECMA-48: cursor home, erase the screen
NOTHING = "-"

DATACENTERS = [
    Column("Datacenter"),
    Column("Deployments", "right"),
    Column("Serving", "right"),
    Column("In flight", "right"),
    Column("Leased", "right"),
    Column("Slots", "right"),
]
MODELS = [
    Column("Model"),
    Column("Deployments", "right"),
    Column("Serving", "right"),
    Column("Waiting", "right"),
    Column("Tool calls wrong", "right"),
]
DEPLOYMENTS = [
    Column("Deployment"),
    Column("Datacenter"),
    Column("Model"),
    Column("State"),
    Column("Breaker"),
    Column("Health"),
    Column("In flight", "right"),
    Column("Leased", "right"),
    Column("Slots", "right"),
    Column("First token p50", "right"),
    Column("p99", "right"),
    Column("Errors", "right"),
    Column("Tool calls wrong", "right"),
]
CHANGES = [Column("Changed over the file"), Column("How"), Column("Now")]

RESERVATIONS = [
    Column("Reservation"),
    Column("Tenant"),
    Column("Model"),
    Column("In flight", "right"),
    Column("Waiting", "right"),
    Column("Slots", "right"),
    Column("Tokens/s", "right"),
    Column("Tokens left", "right"),
]

CACHES = [
    Column("Deployment"),
    Column("Datacenter"),
    Column("Cached prompt", "right"),
    Column("Router hits", "right"),
    Column("Host tier hits", "right"),
    Column("Queue wait", "right"),
    Column("KV transfer", "right"),
]


def status(
    output: TableOrJson = "table",
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.1, help="Seconds between two looks of --watch.")
    ] = 1.0,
    control_url: ControlUrl = None,
    state_dir: ControlStateDir = None,
    plain: Plain = False,
) -> None:
    """Show the fleet as one gateway sees it: state, breaker, slots, first token, errors.

    In flight, waiting and leased are this gateway's own; first token and errors are those of the
    last minute and the last seconds. Tool calls wrong is the public tool-call error rate: of the
    answers of the last two hours that finished with tool calls, those with a wrong one. A
    deployment marked (behind) is offered requests with tools after the others of its model. Cached
    is what engines say in their answers of the last half hour; the other figures of caches are the
    workers' own, since they started. Tokens left is what a reservation's bucket of output held when
    this gateway asked last.

    Examples:
      prime inference status
      prime inference status --watch
      prime inference status -o json | jq '.deployments[] | select(.state != "serving")'
    """
    terminal = Terminal(plain=plain)
    with connect(control_url, state_dir) as client:
        seen = False
        while True:
            try:
                view = client.fleet()
            except CommandFailed as error:
                if not seen:
                    raise
                terminal.note(f"{error.message} Looking again.")  # it may be on its way back
                time.sleep(every)
                continue
            seen = watch
            if output == "json":
                terminal.line(json.dumps(view)) if watch else terminal.json(view)
            else:
                if watch and sys.stdout.isatty() and not plain:
                    sys.stdout.write(CLEAR)
                show(view, terminal)
            if not watch:
                return
            time.sleep(every)


def show(view: Mapping[str, Any], terminal: Terminal) -> None:
    """The three tables, and what is wrong."""
    places = [
        [one["id"], *(str(one[key]) for key in ("deployments", "serving", "in_flight", "leased",
                                                 "slots"))]
        for one in view["datacenters"]
    ]  # fmt: skip
    terminal.table("Datacenters", DATACENTERS, places)
    terminal.line()
    models = [
        [one["id"], *(str(one[key]) for key in ("deployments", "serving", "waiting")), _calls(one)]
        for one in view["models"]
    ]
    terminal.table("Models", MODELS, models)
    terminal.line()
    show_deployments(view["deployments"], terminal)
    show_caches(view["caches"], terminal)
    show_reservations(view.get("reservations", []), terminal)  # of an earlier release: none
    if view["changes"]:
        terminal.line()
        show_changes(view["changes"], terminal)
    if view["degraded"]:
        away = "is away, or a lease has lapsed" if not view["store_error"] else "refuses"
        terminal.note(f"Degraded: the coordination store {away}.")
    if view["store_error"]:
        terminal.note(f"Coordination: {view['store_error']}")
    if view["error"]:
        terminal.note(f"The fleet that is wanted cannot be served: {view['error']}")
    for name, reason in view["refused"].items():
        terminal.note(f"{name} is listed as ready and not served: {reason}")
    for task, cause in view.get("failing", {}).items():  # a gateway of an earlier release: none
        terminal.note(f"Failing: {task} ({cause})")


def show_changes(changes: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """What operators have changed with `prime inference deployments`, one row for each."""
    rows = [
        [
            one["deployment"],
            one["change"],
            ", ".join(f"{key} {_value(value)}" for key, value in one["values"].items() if value),
        ]
        for one in changes
    ]
    terminal.table("Changes by operators", CHANGES, rows)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def show_deployments(deployments: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """One row for each."""
    terminal.table("Deployments", DEPLOYMENTS, [_row(one) for one in deployments])


def show_caches(caches: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """One row for each deployment of which anything is known."""
    rows = [
        [
            one["id"],
            one["datacenter"],
            *(_share(one[name]) for name in ("cached", "router_hits", "host_hits")),
            _seconds(one["queue_s"]),
            _seconds(one["transfer_s"]),
        ]
        for one in caches
    ]
    known = [row for row in rows if set(row[2:]) != {NOTHING}]
    if known:
        terminal.line()
        terminal.table("Caches", CACHES, known)


def show_reservations(reservations: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """One row for each that has slots."""
    names = (
        "id", "tenant", "model", "in_flight", "waiting", "slots", "tokens_per_second",
        "tokens_left",
    )  # fmt: skip
    rows = [
        [NOTHING if one[name] is None else str(one[name]) for name in names] for one in reservations
    ]
    if rows:
        terminal.line()
        terminal.table("Reservations", RESERVATIONS, rows)


def _row(one: Mapping[str, Any]) -> list[str]:
    cause = f" ({one['cause']})" if one["cause"] else ""
    return [
        one["id"],
        one["datacenter"],
        one["model"],
        one["state"],
        f"{one['breaker']}{cause}",
        "healthy" if one["healthy"] else "unhealthy",
        _in_flight(one),
        f"{one['leased']}{' (lapsed)' if one['lease_lapsed'] else ''}",
        str(one["slots"]),
        _seconds(one["p50_first_token_s"]),
        _seconds(one["p99_first_token_s"]),
        f"{one['error_rate']:.1%}",
        f"{_calls(one)}{' (behind)' if one['tool_calls_behind'] else ''}",
    ]


def _in_flight(one: Mapping[str, Any]) -> str:
    flex = one.get("flex_in_flight")  # a gateway of an earlier release: none
    return f"{one['in_flight']}{f' ({flex} flex)' if flex else ''}"


def _calls(one: Mapping[str, Any]) -> str:
    rate = one["tool_call_error_rate"]
    return NOTHING if rate is None else f"{rate:.1%} of {one['tool_call_answers']}"


def _share(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f} s"
