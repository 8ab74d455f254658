"""Which gateway, or gateways, an operator's command speaks to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_inference.cli.failures import WrongUsage

if TYPE_CHECKING:
    from prime_inference.cli.control_client import ControlClient

ControlUrl = Annotated[
    str | None,
    typer.Option(
        "--control-url",
        help="Control listener of the gateway. Default: PRIME_CONTROL_URL, else the gateway that"
        " runs on this machine.",
    ),
]
ControlStateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="The gateway's folder, which holds its key. Default: PRIME_STATE_DIR, else"
        " ~/.local/state/prime-inference.",
    ),
]
ControlUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--control-url",
        help="Control listener of a gateway; once for each that is to be told. Default:"
        " PRIME_CONTROL_URLS (commas between them), else PRIME_CONTROL_URL, else the gateway that"
        " runs on this machine.",
    ),
]
ControlStateDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--state-dir",
        help="A gateway's folder, which holds its key; once for each, or one for all. Default:"
        " PRIME_STATE_DIR, else ~/.local/state/prime-inference.",
    ),
]


def connect(control_url: str | None, state_dir: Path | None) -> ControlClient:
    """The one gateway that the options mean. Raises NothingAnswers, NoApiKey, WrongUsage."""
    from prime_inference.cli.control_client import ControlClient
    from prime_inference.cli.gateways import addresses

    urls = [control_url] if control_url else []
    found = addresses(urls, [state_dir] if state_dir else [], os.environ)
    if len(found) > 1:
        raise WrongUsage("This shows one gateway: name it with --control-url.")
    return ControlClient(found[0])


def tell(
    control_urls: list[str] | None,
    state_dirs: list[Path] | None,
    ask: Callable[[ControlClient], dict[str, Any]],
    done: Callable[[dict[str, Any]], str],
    output: str,
    *,
    plain: bool,
) -> None:
    """Ask every gateway that the options mean and say what each did. Raises CommandFailed."""
    from prime_inference.cli.gateways import addresses, show, tell_all

    found = addresses(control_urls or [], state_dirs or [], os.environ)
    show(tell_all(found, ask), done, output, plain=plain)
