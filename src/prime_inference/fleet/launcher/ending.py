"""Ends all that belongs to a fleet, whoever started it and whatever is written of it."""

from __future__ import annotations

import os

from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.launcher.keeper import GRACE_SECONDS
from prime_inference.fleet.launcher.living import lives
from prime_inference.fleet.launcher.lock import lock_of_the_dead
from prime_inference.fleet.launcher.processes import Identity, end_all, find
from prime_inference.fleet.launcher.state import FleetState, StateFolder


def everything(folder: StateFolder, state: FleetState | None) -> dict[Identity, str]:
    """What runs of the fleet, by its environment and by the state, as DEPLOYMENT/PROCESS."""
    found = {
        identity: name
        for name, identities in find(str(folder.folder)).items()
        for identity in identities
    }
    for name, record in state.processes() if state else ():
        if record.identity is not None and lives(record, folder):
            found.setdefault(record.identity, name)
    return found


def turn(name: str) -> int:
    """The gateway's answers need the frontends, and theirs the workers."""
    process = name.rpartition("/")[2]
    return ("gateway", "frontend").index(process) if process in ("gateway", "frontend") else 2


async def end_everything(folder: StateFolder, state: FleetState | None) -> None:
    """Raises FleetRefused with what could not be ended."""
    left = await end_all(lambda: everything(folder, state), turn, GRACE_SECONDS)
    if left:
        raise FleetRefused(f"These could not be ended: {', '.join(left)}.")


async def end_without_supervisor(folder: StateFolder) -> int:
    """End every process of a fleet whose supervisor is gone; how many there were. Raises
    FleetRunning, and FleetRefused with what could not be ended."""
    lock = await lock_of_the_dead(folder)
    try:
        state = folder.load()
        count = len(everything(folder, state))
        await end_everything(folder, state)
        folder.clear_told()
        for file in (folder.state_file, folder.socket):
            file.unlink(missing_ok=True)
        return count
    finally:
        os.close(lock)
