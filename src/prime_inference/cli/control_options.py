"""Which gateway an operator's command speaks to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prime_inference.cli.control_client import ControlClient

ControlUrl = Annotated[
    str | None,
    typer.Option(
        "--control-url",
        envvar="PRIME_CONTROL_URL",
        show_envvar=False,
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


def connect(control_url: str | None, state_dir: Path | None) -> ControlClient:
    """The gateway that the options mean. Raises NothingAnswers, NoApiKey, WrongUsage."""
    from prime_inference.cli.control_client import ControlClient, control_address

    return ControlClient(control_address(control_url, state_dir))
