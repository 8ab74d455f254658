"""What a scenario plays on: engines, the network before them, a store, gateways, a client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from prime_inference.bench.faults.client import MESSAGES, MODEL, Answer, Client
from prime_inference.bench.faults.link import Link
from prime_inference.bench.faults.replica import Clocks, Replica
from prime_inference.bench.faults.store import Store
from prime_inference.engines.mock import MockEngine, Seen, expected_text

ANSWER_TOKENS = 60  # Failover Bench's
PACE = 0.016  # seconds between tokens: its healthy answer takes about a second
SLOWER = 0.15  # seconds to the fallback's first token, so that the primary is preferred
SLOTS = 64
CONTEXT_TOKENS = 131_072  # of the model, and of every engine that is not told otherwise
WARM_UPS = 200  # requests at most until the primary is preferred
WARM_UP_PAUSE = 0.1  # seconds; a gateway looks at its measurements once a second
SETTLED = 12  # in a row: for longer than that second
EXPECTED = expected_text(MESSAGES, length=ANSWER_TOKENS)


@dataclass
class Deployment:
    """An engine, and how gateways reach it."""

    name: str
    datacenter: str
    engine: MockEngine
    link: Link | None = None
    slots: int = SLOTS
    base_url: str = ""  # other than the engine's or the link's

    @property
    def url(self) -> str:
        return self.base_url or (self.link.base_url if self.link else self.engine.base_url)

    @property
    def attempts(self) -> int:
        """Requests that the engine has seen."""
        return len(self.seen)

    @property
    def seen(self) -> Sequence[Seen]:
        return self.engine.requests


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scenario asks for: deployments by name, each in a datacenter of the same name."""

    deployments: Sequence[str] = ("primary", "fallback")
    gateways: int = 1
    store: bool = False
    links: bool = False
    slots: int = SLOTS
    pace: float = PACE
    first_token: float = SLOWER  # of all but the first
    answer_tokens: int = ANSWER_TOKENS
    context_tokens: Mapping[str, int] = field(default_factory=dict)
    clocks: Clocks = Clocks()  # noqa: RUF009  # frozen
    most_files: int | None = None
    environments: Sequence[Mapping[str, str]] = ()  # of each gateway
    prefix: Sequence[str | Path] = ()
    warm_up: bool = True


class Stage:
    """Everything of one scenario, started and stopped with it."""

    def __init__(self, folder: Path, setting: Setting) -> None:
        self.folder = folder
        self.setting = setting
        self.deployments: dict[str, Deployment] = {}
        self.gateways: list[Replica] = []
        self.store: Store | None = None
        self.client: Client = None  # type: ignore[assignment]  # set by `start`
        self.config = folder / "fleet.toml"

    @property
    def primary(self) -> Deployment:
        return next(iter(self.deployments.values()))

    @property
    def fallback(self) -> Deployment:
        return list(self.deployments.values())[1]

    @property
    def gateway(self) -> Replica:
        return self.gateways[0]

    @property
    def attempts(self) -> str:
        """What each deployment saw, by the first letters of their names: `2p/1f`."""
        return "/".join(f"{d.attempts}{d.name[0]}" for d in self.deployments.values())

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(self.setting.deployments):
            await self._start_deployment(name, first=number == 0)
        if self.setting.store:
            self.store = Store(self.folder)
            await self.store.start()
        self.write_fleet()
        for number in range(self.setting.gateways):
            await self._start_gateway(number)
        self.client = Client(self.gateway.key)
        if self.setting.warm_up:
            await self.warm_up()

    async def stop(self) -> None:
        for gateway in self.gateways:
            await gateway.stop()
        if self.client is not None:
            await self.client.close()
        if self.store is not None:
            await self.store.kill()
        for deployment in self.deployments.values():
            if deployment.link is not None:
                await deployment.link.stop()
            await deployment.engine.stop()

    def write_fleet(self, deployments: Sequence[Deployment] | None = None) -> None:
        """The fleet file, replaced in one step."""
        wanted = list(self.deployments.values()) if deployments is None else deployments
        fresh = self.config.with_suffix(".new")
        fresh.write_text(fleet_file(wanted))
        fresh.replace(self.config)

    async def warm_up(self) -> None:
        """Until every gateway has measured every deployment and prefers the primary.

        With conversations that have different homes: one that begins goes home unless that is
        notably slower.
        """
        for gateway in self.gateways:
            self.forget()
            row = 0  # requests in a row that went to the primary
            for number in range(WARM_UPS):
                before = self.primary.attempts
                messages = [{"role": "user", "content": f"Warm up {number}"}]
                answer = await self.ask(gateway, messages=messages, max_tokens=1)
                assert answer.success, f"a healthy request failed: {answer.error}"
                row = row + 1 if self.primary.attempts > before else 0
                measured = all(one.attempts for one in self.deployments.values())
                if measured and row >= SETTLED:
                    break
                await asyncio.sleep(WARM_UP_PAUSE)
            else:
                raise AssertionError("the gateway does not prefer the faster deployment")
        self.forget()

    def forget(self) -> None:
        """Count attempts from now on."""
        for deployment in self.deployments.values():
            deployment.engine.reset()

    async def ask(self, gateway: Replica | None = None, **options: Any) -> Answer:
        """One request to a gateway, the first unless told otherwise."""
        return await self.client.ask((gateway or self.gateway).base_url, **options)

    async def metric(self, name: str, gateway: Replica | None = None) -> float:
        """The sum of a metric's samples."""
        text = await _get(f"{(gateway or self.gateway).control_url}/metrics")
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((name + " ", name + "{"))
        )

    async def fleet(self, gateway: Replica) -> list[dict[str, Any]]:
        """The deployments as a gateway sees them."""
        view = json.loads(await _get(f"{gateway.control_url}/fleet", gateway.key))
        deployments: list[dict[str, Any]] = view["deployments"]
        return deployments

    async def breakers(self, gateway: Replica) -> dict[str, str]:
        """How a gateway's breakers stand, by deployment."""
        return {one["id"]: one["breaker"] for one in await self.fleet(gateway)}

    # --

    async def _start_deployment(self, name: str, *, first: bool) -> None:
        setting = self.setting
        engine = MockEngine(
            pace=setting.pace,
            first_token=0.0 if first else setting.first_token,
            answer_tokens=setting.answer_tokens,
            context_tokens=setting.context_tokens.get(name, CONTEXT_TOKENS),
        )
        await engine.start()
        link = None
        if setting.links:
            link = Link("127.0.0.1", int(engine.base_url.rpartition(":")[2].split("/")[0]))
            await link.start()
        self.deployments[name] = Deployment(name, f"dc-{name}", engine, link, setting.slots)

    async def _start_gateway(self, number: int) -> None:
        setting = self.setting
        environments = setting.environments
        gateway = Replica(
            self.folder / f"gateway-{number}",
            self.config,
            self.store.url if self.store else None,
            clocks=setting.clocks,
            environment=environments[number] if environments else None,
            prefix=setting.prefix,
            most_files=setting.most_files,
        )
        if self.gateways:
            gateway.share_key(self.gateways[0])
        self.gateways.append(gateway)
        await gateway.start()


@contextlib.asynccontextmanager
async def staged(folder: Path, setting: Setting) -> AsyncIterator[Stage]:
    """A stage for the time of a scenario."""
    stage = Stage(folder, setting)
    try:
        await stage.start()
        yield stage
    finally:
        await stage.stop()


def fleet_file(deployments: Sequence[Deployment]) -> str:
    """A fleet of one model in TOML (docs/fleet-file.md); JSON's strings are TOML's too."""
    lines = [
        "[[models]]",
        f'id = "{MODEL}"',
        'revision = "r1"',
        f"context_tokens = {CONTEXT_TOKENS}",
    ]
    for name in sorted({deployment.datacenter for deployment in deployments}):
        lines += ["[[datacenters]]", f"id = {json.dumps(name)}"]
    for one in deployments:
        lines += [
            "[[deployments]]",
            f"id = {json.dumps(one.name)}",
            f'model = "{MODEL}"',
            f"datacenter = {json.dumps(one.datacenter)}",
            'engine = "vllm"',
            f"base_url = {json.dumps(one.url)}",
            f"slots = {one.slots}",
            'upstream_model = "echo"',
        ]
    return "\n".join(lines) + "\n"


async def eventually(condition: Callable[[], bool], seconds: float) -> float | None:
    """Seconds until `condition` held; None if it did not within `seconds`."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return None
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def _get(url: str, key: str = "") -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(trust_env=False, headers=headers) as client:
        return (await client.get(url)).raise_for_status().text
