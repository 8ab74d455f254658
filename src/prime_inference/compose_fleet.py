"""The part of the composition root that serves a fleet from a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prime_inference.adapters.files.fleet_file import FleetFile
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.compose import ENGINE_PARAMETERS, Announce, ListenOptions, listening
from prime_inference.domain.fleet import Fleet
from prime_inference.engines.launcher import EngineLauncher
from prime_inference.engines.local.weights import SMOLLM2_135M, Progress, fetch_in_thread
from prime_inference.gateway.live_fleet import LiveFleet, check
from prime_inference.ports.fleet import FleetSource, Launcher


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """A gateway over the fleet of a file."""

    listen: ListenOptions
    file: Path


async def gateway_fleet(options: FleetOptions, announce: Announce) -> None:
    """Run a gateway over a fleet that runs already, until it is told to stop.

    Raises FleetInvalid, StateFolderError, OSError for a port in use.
    """
    source = FleetFile(options.file, ENGINE_PARAMETERS, launching=False)
    await _serve(source, source.read(), None, options, announce)


async def serve_fleet(
    options: FleetOptions,
    cache_dir: Path,
    announce: Announce,
    progress: Progress = lambda done, total: None,
) -> None:
    """Run a gateway and those engines of the fleet that have no base URL.

    Raises FleetInvalid, WeightsUnavailable, EngineFailed, StateFolderError, OSError for a port
    in use.
    """
    source = FleetFile(options.file, ENGINE_PARAMETERS, launching=True)
    launcher = EngineLauncher(partial(fetch_in_thread, SMOLLM2_135M, cache_dir, progress))
    try:
        fleet = await launcher.start(source.read())
        await _serve(source, fleet, launcher, options, announce)
    finally:
        await launcher.stop_all_but(())


async def _serve(
    source: FleetSource,
    fleet: Fleet,
    launcher: Launcher | None,
    options: FleetOptions,
    announce: Announce,
) -> None:
    check(fleet)

    async def follow(live: LiveFleet) -> None:
        live.fleet = fleet
        await live.follow(source, launcher)

    catalog = MemoryCatalog(fleet.models, fleet.deployments)
    async with listening(catalog, options.listen, lambda: None, follow=follow) as (endpoint, stop):
        announce(endpoint(fleet.models[0].id))
        await stop()
