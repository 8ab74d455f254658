"""`prime inference plan`: memory, cache and topology of a deployment before it exists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from prime_inference.cli.failures import CommandFailed
from prime_inference.cli.options import Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Column, Terminal

EPILOG = json_help(
    "{spec, model, gpu, history_tokens, turn_tokens, rows: [{format, row_bytes,"
    " bytes_per_token, gain_over_fp8, ...}, ...], candidates: {role: [{parallel, memory,"
    " replica_tokens, usable_low, usable_high, first_token_seconds, inter_token_seconds, ...},"
    " ...]}, excluded: {spread: reason}, choices: [{role, chosen, in_spec, reason}, ...],"
    " ratios: [{what, low, high, published, terms}, ...], transfers: [{layout, descriptors,"
    " descriptor_bytes, nbytes, seconds}, ...]}",
)


class PlanFailed(CommandFailed):
    """The spec cannot be read, or nothing of it fits."""

    code = "plan_failed"


def plan(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="A spec of the catalogue, or a file.toml.")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", help="Another model: of the catalogue, or a config.json."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Other hardware: h200, gb200, ...")
    ] = None,
    kv: Annotated[str | None, typer.Option("--kv", help="Another format of the KV cache.")] = None,
    first_token_ms: Annotated[
        float | None, typer.Option(min=1, help="Target: p90 of the time to the first token.")
    ] = None,
    inter_token_ms: Annotated[
        float | None, typer.Option(min=0.1, help="Target: p90 of the time between tokens.")
    ] = None,
    history_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a conversation that are cached.")
    ] = None,
    turn_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that a turn adds to them.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw it: FILE.png or FILE.svg.")
    ] = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Derive memory, KV cache, topology and transfers from model, hardware and targets.

    Nothing is measured: times are a roofline, and what is assumed is named.

    Examples:
      prime inference plan glm-5.3-gb200
      prime inference plan glm-5.3-gb200 --gpu b200 --history-tokens 60000 -o json
      prime inference plan qwen3-0.6b --plot plan.png
    """
    import msgspec

    from prime_inference.domain.errors import CannotStart
    from prime_inference.fleet.catalogue import find_model, read_spec
    from prime_inference.fleet.plan import make_plan
    from prime_inference.fleet.plan_plot import draw
    from prime_inference.fleet.plan_table import sentences, tables

    slo = {
        "first_token_ms": first_token_ms,
        "inter_token_ms": inter_token_ms,
        "history_tokens": history_tokens,
        "turn_tokens": turn_tokens,
    }
    changes: dict[str, Any] = {
        "slo": slo,
        "hardware": {"gpu": gpu},
        "kv": {"format": kv},
        "model": {"architecture": model},
    }
    terminal = Terminal(plain=plain)
    try:
        wanted = read_spec(spec, changes=_given(changes))
        base = None if model else Path(spec).parent
        made = make_plan(wanted, find_model(wanted.model.architecture, base))
        if plot is not None:
            draw(made, plot)
    except (CannotStart, OSError, ValueError) as error:
        raise PlanFailed(str(error)) from error
    if output == "json":
        terminal.json(msgspec.to_builtins(made))
        return
    for table in tables(made):
        if plain:
            terminal.line(f"{table.title}")
        columns = [Column(name, "right" if at else "left") for at, name in enumerate(table.rows[0])]
        terminal.table(table.title, columns, table.rows[1:])
        terminal.line()
    for sentence in sentences(made):
        terminal.line(sentence)


def _given(changes: dict[str, Any]) -> dict[str, Any]:
    """Only what the command line has a value for."""
    result: dict[str, Any] = {}
    for key, value in changes.items():
        kept = _given(value) if isinstance(value, dict) else value
        if kept is not None and kept != {}:
            result[key] = kept
    return result
