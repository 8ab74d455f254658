"""A fleet file that a gateway of a test follows."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from prime_inference.adapters.files.fleet_file import FleetFile
from prime_inference.compose import ENGINE_PARAMETERS
from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.live_fleet import LiveFleet

from .conftest import StartGateway
from .running import MODEL, RunningGateway, eventually

POLL_SECONDS = 0.02


class FollowedFile:
    """The file, and the gateway that follows it."""

    def __init__(self, folder: Path, **engines: MockEngine) -> None:
        self.path = folder / "fleet.toml"
        self._engines = engines
        self.live: LiveFleet | None = None

    def write(self, *names: str, model: str = MODEL, more: str = "", revision: str = "r1") -> None:
        """Replace the file: `names` are deployments, each at the engine of that name."""
        text = f'[[models]]\nid = "{model}"\nrevision = "{revision}"\ncontext_tokens = 4096\n'
        text += '[[datacenters]]\nid = "east"\n'
        for name in names:
            text += f'[[deployments]]\nid = "{name}"\nmodel = "{model}"\ndatacenter = "east"\n'
            text += f'engine = "vllm"\nslots = 256\nbase_url = "{self._engines[name].base_url}"\n'
        draft = self.path.with_suffix(".draft")
        draft.write_text(text + more)
        draft.replace(self.path)

    def move(self, name: str, engine: MockEngine) -> None:
        """From the next `write` on, that deployment is at another engine."""
        self._engines[name] = engine

    def follow(self, live: LiveFleet) -> Coroutine[Any, Any, None]:
        self.live = live
        changes = self.path.with_name("changes.json")
        file = FleetFile(self.path, ENGINE_PARAMETERS, launching=False, changes=changes)
        fleet = file.read()
        live.replace(fleet)
        return live.follow(fleet, file, poll_seconds=POLL_SECONDS)

    async def taken(self, reloads: int, *, refused: int = 0) -> None:
        """Wait until so many changes were taken over, and so many refused."""
        assert self.live is not None
        live = self.live
        await eventually(lambda: (live.reloads, live.failed_reloads) == (reloads, refused), 10)


async def started(
    start_gateway: StartGateway, fleet: FollowedFile, **options: Any
) -> RunningGateway:
    gateway = await start_gateway(follow=fleet.follow, **options)
    await eventually(lambda: fleet.live is not None)
    return gateway
