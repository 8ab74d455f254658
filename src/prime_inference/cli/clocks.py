"""The clocks of an attempt on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prime_inference.gateway.clocks import ClockLimits

LEAST_SECONDS = 0.1  # the clocks are looked at ten times a second

ConnectSeconds = Annotated[
    float | None,
    typer.Option(
        "--connect-seconds",
        min=LEAST_SECONDS,
        help="Time for a connection to an upstream. Default: 5.",
    ),
]
FirstTokenSeconds = Annotated[
    float | None,
    typer.Option(
        "--first-token-seconds",
        min=LEAST_SECONDS,
        help="Time to the first token of a stream; then another upstream is tried. Default: 120.",
    ),
]
IdleSeconds = Annotated[
    float | None,
    typer.Option(
        "--idle-seconds",
        min=LEAST_SECONDS,
        help="Time between two events of a stream. Default: 60.",
    ),
]
WholeSeconds = Annotated[
    float | None,
    typer.Option(
        "--whole-seconds",
        min=LEAST_SECONDS,
        help="Time for an answer that is not streamed; then another upstream is tried."
        " Default: 600.",
    ),
]


def clock_limits(**seconds: float | None) -> ClockLimits:
    """The default clocks, with those that were given over them."""
    from prime_inference.gateway.clocks import ClockLimits

    return ClockLimits(**{name: value for name, value in seconds.items() if value is not None})
