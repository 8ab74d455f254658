"""Finding a fleet on this machine, and telling what is wrong with it."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from prime_inference.cli.failures import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from prime_inference.fleet.launcher.state import StateFolder

T = TypeVar("T")

File = Annotated[Path, typer.Argument(metavar="FILE", help="The fleet's file, fleet.toml.")]
DynamoPython = Annotated[
    str | None,
    typer.Option(
        "--python",
        help="Interpreter that has Dynamo. Default: PRIME_DYNAMO_PYTHON, else .envs/dynamo.",
    ),
]


class FleetFailed(CommandFailed):
    """The fleet's file is wrong, or the fleet did not do what it was asked."""

    code = "fleet_failed"


class FleetCrashLooping(FleetFailed):
    """A process of the fleet ends whenever it is started."""

    code = "crash_looping"


def found_state_dir(given: Path | None) -> Path:
    from prime_inference.cli.folders import state_folder

    return (given or state_folder(os.environ, Path.home())).absolute()


def found_folder(fleet: str | None, state_dir: Path | None) -> StateFolder:
    """The state folder of a fleet: the one named, else the only one, or the only one that is up.

    Raises WrongUsage, FleetNotRunning.
    """
    from prime_inference.fleet.errors import FleetNotRunning
    from prime_inference.fleet.launcher.state import StateFolder

    fleets = found_state_dir(state_dir) / "fleets"
    known = sorted(entry.name for entry in fleets.iterdir()) if fleets.is_dir() else []
    up = [name for name in known if StateFolder(fleets / name).socket.exists()]
    if fleet is None and 1 in (len(known), len(up)):
        fleet = (up or known)[0]
    if fleet is None:
        if known:
            raise WrongUsage(f"Name one with --fleet: {', '.join(known)}.")
        raise FleetNotRunning(f"No fleet was started in {fleets.parent}.")
    if fleet not in known:
        raise FleetNotRunning(f"No fleet {fleet!r} was started in {fleets.parent}.")
    return StateFolder(fleets / fleet)


def log_files(folder: StateFolder, deployment: str, process: str | None) -> list[Path]:
    """What processes of a deployment write to; the names are taken as they are."""
    names = f"{glob.escape(deployment)}.{glob.escape(process) if process else '*'}.log"
    return [] if "/" in names else sorted(folder.logs.glob(names))


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    with explained():
        return asyncio.run(work)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    from prime_inference.domain.errors import CannotStart
    from prime_inference.fleet.errors import CrashLooping, FleetFrozen

    try:
        yield
    except CrashLooping as error:
        raise FleetCrashLooping(str(error), hint=error.hint) from error
    except FleetFrozen as error:
        raise FleetFailed(str(error), hint=error.hint) from error
    except CannotStart as error:
        raise FleetFailed(str(error)) from error
    except OSError as error:
        raise FleetFailed(f"{error.filename or 'system'}: {error.strerror or error}") from error
