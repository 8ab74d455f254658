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
from prime_inference.fleet.controller.followed_fleet import FollowedFleet
from prime_inference.fleet.controller.lists import GatewayLists
from prime_inference.fleet.controller.load import FrontendLoad
from prime_inference.fleet.controller.local_datacenter import LocalDatacenter
from prime_inference.fleet.controller.overflow import Overflow, OverflowSettings
from prime_inference.fleet.controller.places import Places
from prime_inference.fleet.controller.scaling import Scaling
from prime_inference.fleet.fleet import Fleet
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
    followed = FollowedFleet(file)
    fleet = followed.read()
    folder = state_dir / "controllers" / fleet.name
    folder.mkdir(parents=True, exist_ok=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        places = Places(fleet, state_dir, python=python, base=file.parent)
        stack.push_async_callback(places.close)
        await places.open()
        load = FrontendLoad()
        lists = GatewayLists(fleet, folder, places.clusters, places.known.leaving)
        stack.push_async_callback(lists.close)
        controller = Controller(
            places.datacenters,
            lists.publish,
            before=lists.before(),
            leaving=places.leaving,
            left=places.known.left,
            surge={entry.id: entry.surge for entry in fleet.datacenters},
            scaling=_scaling(fleet),
            in_flight=load.in_flight,
            notice_seconds=_notice_seconds(fleet),
        )
        stack.push_async_callback(controller.close)
        controller.want(fleet.deployments)
        announce(Controlled(fleet.name, lists.file, places.folders))
        background = Background(asyncio.get_running_loop().time)
        asked = background.start(
            "caches",
            lambda: answer_asks(reports_file(lists.file), lambda: _cache_reports(places.here)),
        )
        stack.callback(asked.cancel)
        await _until(stop, background, controller, followed, fleet)


async def _cache_reports(here: list[LocalDatacenter]) -> dict[str, CacheReport]:
    """Of the datacenters on this machine; in a cluster Prometheus asks the workers itself."""
    found = await asyncio.gather(*(one.cache_reports() for one in here))
    return {name: report for reports in found for name, report in reports.items()}


async def _until(
    stop: asyncio.Event,
    background: Background,
    controller: Controller,
    followed: FollowedFleet,
    fleet: Fleet,
) -> None:
    """Step until told to stop, in the middle of a step too: the next controller goes on."""
    waiting = asyncio.create_task(stop.wait())
    running = background.start("controller", lambda: _follow(controller, followed, fleet))
    done, _ = await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, running):
        task.cancel()
    await asyncio.wait({waiting, running})
    if running in done:
        running.result()


async def _follow(controller: Controller, followed: FollowedFleet, fleet: Fleet) -> None:
    """Step for ever. The file may have changed while all this began, or since a defect."""
    while True:
        new = followed.changed()
        if new is not None:
            _take(controller, new, fleet)
        await controller.step()
        await asyncio.sleep(STEP_SECONDS)


def _notice_seconds(fleet: Fleet) -> float:
    if fleet.gateway.notice_seconds is not None:
        return fleet.gateway.notice_seconds
    remote = any(entry.kubernetes is not None for entry in fleet.datacenters)
    return CLUSTER_NOTICE_SECONDS if remote else NOTICE_SECONDS


def _take(controller: Controller, new: Fleet, fleet: Fleet) -> None:
    """Want what the file says now."""
    if (new.name, new.datacenters, new.overflow) != (fleet.name, fleet.datacenters, fleet.overflow):
        log.error("name, datacenters and overflow change only when the controller starts anew")
        return
    log.info("the fleet's file has changed")
    controller.want(new.deployments)


def _scaling(fleet: Fleet) -> Scaling | None:
    """Raises FleetError."""
    if fleet.overflow is None:
        return None
    settings = msgspec.convert(msgspec.to_builtins(fleet.overflow), OverflowSettings)
    return Scaling(Overflow(settings), {one.id: one.gpus for one in fleet.datacenters})
