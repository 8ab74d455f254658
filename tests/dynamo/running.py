"""A fleet under the launcher, as tests see it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from prime_inference.fleet.fleet import read_fleet
from prime_inference.fleet.launcher.control import Command, ask
from prime_inference.fleet.launcher.run import bring_down, detach, fleet_folder, until_ready
from prime_inference.fleet.launcher.state import StateFolder

READY_SECONDS = 120.0  # goal: 20 s on two cores, printed below; a busy machine takes longer
LOOK_SECONDS = 0.1


class RunningFleet:
    """The processes of a fleet's file, and a client."""

    def __init__(self, folder: StateFolder, client: httpx.AsyncClient) -> None:
        self.folder = folder
        self.client = client

    async def ready(self) -> dict[str, Any]:
        """Its status, once all of it is ready."""
        return await until_ready(self.folder, READY_SECONDS)

    async def look(self) -> dict[str, Any]:
        """Its status now."""
        return await ask(self.folder, Command("status"))

    async def frontend(self, deployment: str) -> str:
        """The base URL of a deployment's frontend."""
        status = await self.look()
        return {one["id"]: str(one["base_url"]) for one in status["deployments"]}[deployment]

    async def pids(self) -> dict[str, int]:
        return {
            f"{one['id']}/{process['name']}": process["pid"]
            for one in (await self.look())["deployments"]
            for process in one["processes"]
        }

    async def kill(self, deployment: str) -> None:
        """SIGKILL its frontend and all of its workers, at once."""
        for name, pid in (await self.pids()).items():
            if name.startswith(f"{deployment}/"):
                os.killpg(pid, signal.SIGKILL)

    async def until(self, deployment: str, *states: str) -> None:
        """Return when the launcher says that it is in one of these states."""
        state = ""
        while state not in states:
            await asyncio.sleep(LOOK_SECONDS)
            found = {one["id"]: one["state"] for one in (await self.look())["deployments"]}
            state = found[deployment]

    async def metric(self, deployment: str, name: str) -> float:
        """What a frontend counts, added up over labels."""
        root = (await self.frontend(deployment)).removesuffix("/v1")
        return total((await self.client.get(f"{root}/metrics")).text, name)

    async def gateway_metric(self, name: str) -> float:
        """What the fleet's gateway counts."""
        control = (await self.look())["gateway"]["control_url"]
        return total((await self.client.get(f"{control}/metrics")).text, name)


class Watch:
    """What processes of a fleet count while none of them is started again."""

    def __init__(self, client: httpx.AsyncClient, status: dict[str, Any]) -> None:
        self.client = client
        self.last: tuple[Counter[str], float] = (Counter(), 0.0)
        self._ports = {
            f"{one['id']}/{process['name']}": process["port"]
            for one in status["deployments"]
            for process in one["processes"]
        }

    async def look(self) -> tuple[Counter[str], float]:
        """Requests that each worker has answered, by `deployment/process`; tokens of prompts
        that routers knew to be cached on the prefill workers that they chose."""
        answers = await asyncio.gather(
            *(self.client.get(f"http://127.0.0.1:{port}/metrics") for port in self._ports.values())
        )
        requests, cached = Counter[str](), 0.0
        generate, prefill = {"dynamo_endpoint": "generate"}, {"phase": "prefill"}
        known = "dynamo_component_router_kv_selected_cached_prefix_tokens_total"
        for name, answer in zip(self._ports, answers, strict=True):
            if name.endswith("/frontend"):
                cached += total(answer.text, known, prefill)
            else:
                requests[name] = round(
                    total(answer.text, "dynamo_component_requests_total", generate)
                )
        self.last = requests, cached
        return self.last


def total(text: str, name: str, labels: Mapping[str, str] = MappingProxyType({})) -> float:
    """A metric in Prometheus' text, added up over its labels but for those given."""
    text = "\n".join(line for line in text.splitlines() if line.startswith(name))
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


@contextlib.asynccontextmanager
async def running_fleet(
    toml: str, state_dir: Path, dynamo_python: str
) -> AsyncIterator[RunningFleet]:
    """Start what a fleet's file says, wait until it is ready, end it."""
    file = state_dir / "fleet.toml"
    # any free port: another gateway may run on this machine
    file.write_text(f"{toml}\n[gateway]\nport = 0\ncontrol_port = 0\n")
    folder = fleet_folder(state_dir, read_fleet(file))
    began = time.monotonic()
    child = detach(file, folder, python=dynamo_python)
    try:
        await until_ready(folder, READY_SECONDS)
        print(f"ready after {time.monotonic() - began:.1f} s")
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            yield RunningFleet(folder, client)
    finally:
        with contextlib.suppress(Exception):
            await bring_down(folder)
        child.wait(60)
