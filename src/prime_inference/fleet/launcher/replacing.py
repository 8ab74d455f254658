"""Replaces what has other content than its file, one deployment after another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.launcher.deployment import RunningDeployment

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # whether one that alone serves can be spared by now


async def replace_changed(deployments: Collection[RunningDeployment], ready_seconds: float) -> None:
    """Until each has its turn. `deployments` may change meanwhile.

    The one that alone of several of its model serves waits until another does. Where one does
    not get ready, others of its model stay as they are.
    """
    changed, told = list(deployments), set[str]()
    while changed := [one for one in changed if one.next is not None and one.record.running]:
        one = next((one for one in changed if can_be_spared(one, deployments)), None)
        if one is None:
            for waiting in changed:
                if waiting.planned.id not in told:
                    log.warning(
                        "%s is replaced later: no other of its model serves", waiting.planned.id
                    )
                told.add(waiting.planned.id)
            await asyncio.sleep(LOOK_SECONDS)
        elif await _replaced(one, ready_seconds):
            changed.remove(one)
        else:
            changed = [other for other in changed if other.model != one.model]


def can_be_spared(one: RunningDeployment, deployments: Collection[RunningDeployment]) -> bool:
    """Whether it serves nobody, or another one of its model serves, or it has no other."""
    others = [
        each
        for each in deployments
        if each is not one and each.model == one.model and each.record.running
    ]
    return not one.serving or not others or any(each.serving for each in others)


async def _replaced(one: RunningDeployment, ready_seconds: float) -> bool:
    """Whether it could be."""
    log.info("deployment %s is replaced: its file has changed", one.planned.id)
    try:
        await one.replace(ready_seconds)
    except (FleetError, OSError) as error:
        log.error("others of %s stay as they are: %s", one.model, error)
        return False
    return True
