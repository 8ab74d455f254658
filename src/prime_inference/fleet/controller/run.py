"""What the command `control` does, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.caches import answer_asks, reports_file
from prime_inference.fleet.controller.controller import NOTICE_SECONDS, STEP_SECONDS, Controller
from prime_inference.fleet.controller.kubernetes_client import KubernetesClient
from prime_inference.fleet.controller.kubernetes_datacenter import KubernetesDatacenter
from prime_inference.fleet.controller.lists import GatewayLists
from prime_inference.fleet.controller.load import FrontendLoad
from prime_inference.fleet.controller.local_datacenter import LocalDatacenter
from prime_inference.fleet.controller.overflow import Overflow, OverflowSettings
from prime_inference.fleet.controller.scaling import Scaling
from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.fleet import Fleet, read_fleet
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.reliability.background import Background

log = logging.getLogger(__name__)

CLUSTER_NOTICE_SECONDS = 120.0
"""A kubelet takes over a changed ConfigMap within its sync period and its cache's, 60 s each."""


@dataclass(frozen=True, slots=True)
class Controlled:
    """What is controlled, and where gateways on this machine read what is ready."""

    fleet: str
    deployments_file: Path
    folders: Mapping[str, Path]  # of the datacenters on this machine


async def control(
    file: Path, state_dir: Path, *, python: str, announce: Callable[[Controlled], None]
) -> None:
    """Make the fleet what the file says, following its changes, until SIGINT or SIGTERM.

    Nothing that runs is ended with it. Raises FleetError, OSError.
    """
    fleet = read_fleet(file)
    folder = state_dir / "controllers" / fleet.name
    folder.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        clusters = {
            entry.id: KubernetesClient.of(entry.kubernetes)
            for entry in fleet.datacenters
            if entry.kubernetes is not None
        }
        folders = {
            entry.id: StateFolder(state_dir / "fleets" / f"{fleet.name}.{entry.id}")
            for entry in fleet.datacenters
            if entry.kubernetes is None
        }
        remote = await _opened_clusters(fleet, clusters, stack)
        here = await _opened_folders(folders, file.parent, python, stack)
        load = FrontendLoad()
        stack.push_async_callback(load.close)
        lists = GatewayLists(fleet, folder, clusters)
        controller = Controller(
            [*remote, *here],
            lists.publish,
            before=lists.before(),
            surge={entry.id: entry.surge for entry in fleet.datacenters},
            scaling=_scaling(fleet),
            in_flight=load.in_flight,
            notice_seconds=_notice_seconds(fleet),
        )
        controller.want(fleet.deployments)
        places = {name: place.folder for name, place in folders.items()}
        announce(Controlled(fleet.name, lists.file, places))
        background = Background(asyncio.get_running_loop().time)
        asked = background.start(
            "caches", lambda: answer_asks(reports_file(lists.file), lambda: _cache_reports(here))
        )
        stack.callback(asked.cancel)
        await _until(stop, background, controller, file, fleet)


async def _opened_clusters(
    fleet: Fleet, clusters: Mapping[str, KubernetesClient], stack: contextlib.AsyncExitStack
) -> list[KubernetesDatacenter]:
    """The datacenters that are clusters; closed with `stack`."""
    monitoring = {
        entry.id: entry.kubernetes.monitoring
        for entry in fleet.datacenters
        if entry.kubernetes is not None
    }
    opened = []
    for name, client in clusters.items():
        one = KubernetesDatacenter(name, client, fleet=fleet.name, monitoring=monitoring[name])
        await one.open()
        stack.push_async_callback(one.close)
        opened.append(one)
    return opened


async def _opened_folders(
    folders: Mapping[str, StateFolder], base: Path, python: str, stack: contextlib.AsyncExitStack
) -> list[LocalDatacenter]:
    """The datacenters on this machine; with `stack` they are closed, and what runs goes on."""
    opened = []
    for name, folder in folders.items():
        one = LocalDatacenter(name, folder, python=python, base=base)
        await one.open()
        stack.push_async_callback(one.close, stop=False)
        opened.append(one)
    return opened


async def _cache_reports(here: list[LocalDatacenter]) -> dict[str, CacheReport]:
    """Of the datacenters on this machine; in a cluster Prometheus asks the workers itself."""
    found = await asyncio.gather(*(one.cache_reports() for one in here))
    return {name: report for reports in found for name, report in reports.items()}


async def _until(
    stop: asyncio.Event, background: Background, controller: Controller, file: Path, fleet: Fleet
) -> None:
    """Step until told to stop, in the middle of a step too: the next controller goes on."""
    waiting = asyncio.create_task(stop.wait())
    running = background.start("controller", lambda: _follow(controller, file, fleet))
    done, _ = await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, running):
        task.cancel()
    await asyncio.wait({waiting, running})
    if running in done:
        running.result()


async def _follow(controller: Controller, file: Path, fleet: Fleet) -> None:
    seen = _stamp(file)
    while True:
        await controller.step()
        await asyncio.sleep(STEP_SECONDS)
        stamp = _stamp(file)
        if stamp not in (seen, None):
            seen = stamp
            _take(controller, file, fleet)


def _stamp(file: Path) -> tuple[int, int] | None:
    """What tells one content from another; None while it is being replaced."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


def _notice_seconds(fleet: Fleet) -> float:
    if fleet.gateway.notice_seconds is not None:
        return fleet.gateway.notice_seconds
    remote = any(entry.kubernetes is not None for entry in fleet.datacenters)
    return CLUSTER_NOTICE_SECONDS if remote else NOTICE_SECONDS


def _take(controller: Controller, file: Path, fleet: Fleet) -> None:
    """Want what the file says now; what is wrong in it changes nothing."""
    try:
        new = read_fleet(file)
    except FleetError as error:
        log.error("the fleet stays as it is: %s", error)
        return
    if (new.name, new.datacenters, new.overflow) != (fleet.name, fleet.datacenters, fleet.overflow):
        log.error("name, datacenters and overflow change only when the controller starts anew")
        return
    log.info("%s has changed", file)
    controller.want(new.deployments)


def _scaling(fleet: Fleet) -> Scaling | None:
    """Raises FleetError."""
    if fleet.overflow is None:
        return None
    settings = msgspec.convert(msgspec.to_builtins(fleet.overflow), OverflowSettings)
    return Scaling(Overflow(settings), {one.id: one.gpus for one in fleet.datacenters})
