"""The part of the composition root that serves a fleet from a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prime_inference.adapters.files.fleet_file import FleetFile
from prime_inference.adapters.files.state_lock import holding
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.compose import ENGINE_PARAMETERS, Announce, ListenOptions, listening
from prime_inference.domain.fleet import Fleet
from prime_inference.engines.launcher import EngineLauncher
from prime_inference.engines.local.weights import SMOLLM2_135M, Progress, fetch_in_thread
from prime_inference.ports.fleet import FleetEditor, Launcher


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """A gateway over the fleet of a file."""

    listen: ListenOptions
    file: Path


async def gateway_fleet(options: FleetOptions, announce: Announce) -> None:
    """Run a gateway over a fleet that runs already, until it is told to stop.

    Raises FleetInvalid, StateFolderError, StoppedAtOnce, OSError for a port in use.
    """
    file = _file(options, launching=False)
    with holding(options.listen.state_dir):
        await _serve(file, file.read(), None, options, announce)


async def serve_fleet(
    options: FleetOptions,
    cache_dir: Path,
    announce: Announce,
    progress: Progress = lambda done, total: None,
) -> None:
    """Run a gateway and those engines of the fleet that have no base URL.

    Raises FleetInvalid, WeightsUnavailable, EngineFailed, StateFolderError, StoppedAtOnce,
    OSError for a port in use.
    """
    file = _file(options, launching=True)
    launcher = EngineLauncher(partial(fetch_in_thread, SMOLLM2_135M, cache_dir, progress))
    with holding(options.listen.state_dir):
        try:
            fleet = await launcher.start(file.read())
            await _serve(file, fleet, launcher, options, announce)
        finally:
            await launcher.stop_all_but(())


def _file(options: FleetOptions, *, launching: bool) -> FleetFile:
    changes = options.listen.state_dir / "fleet_changes.json"
    return FleetFile(options.file, ENGINE_PARAMETERS, launching=launching, changes=changes)


async def _serve(
    editor: FleetEditor,
    fleet: Fleet,
    launcher: Launcher | None,
    options: FleetOptions,
    announce: Announce,
) -> None:
    catalog = MemoryCatalog(fleet.models, fleet.deployments)
    async with listening(
        catalog,
        options.listen,
        lambda: None,
        follow=lambda live: live.follow(fleet, editor, launcher),
    ) as (endpoint, stop):
        announce(endpoint(fleet.models[0].id))
        await stop()
