"""Runs the engines of a fleet that have no base URL, as child processes of this one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from prime_inference.domain.fleet import Fleet, FleetInvalid, Launch
from prime_inference.domain.models import Deployment, Model
from prime_inference.engines.local.supervisor import LocalEngine
from prime_inference.engines.mock.process import MockProcess
from prime_inference.engines.supervised import EngineFailed, SupervisedEngine


@dataclass(frozen=True, slots=True)
class _Wish:
    """What an engine was started for; another wish needs another engine."""

    launch: Launch
    model: str
    context_tokens: int
    slots: int


class EngineLauncher:
    """Implements `ports.fleet.Launcher`.

    `default_model_file` says where the weights are of a llama.cpp that names none.
    """

    def __init__(self, default_model_file: Callable[[], Awaitable[Path]]) -> None:
        self._default_model_file = default_model_file
        self._running: dict[str, tuple[_Wish, SupervisedEngine]] = {}

    async def start(self, fleet: Fleet) -> Fleet:
        wishes = _wishes(fleet)
        for name, wish in wishes.items():
            if name in self._running and self._running[name][0] != wish:
                raise FleetInvalid(
                    f"{name} runs here and cannot become another: give the new one another id."
                )
        for deployment in fleet.deployments:
            if deployment.id in self._running and deployment.id not in wishes:
                raise FleetInvalid(
                    f"{deployment.id} runs here and cannot move: add one elsewhere, and remove it."
                )
        new = {name: wish for name, wish in wishes.items() if name not in self._running}
        engines = {name: await self._engine(name, wish) for name, wish in new.items()}
        failures = await asyncio.gather(
            *(engine.start() for engine in engines.values()), return_exceptions=True
        )
        self._running |= {name: (new[name], engine) for name, engine in engines.items()}
        for name, failure in zip(engines, failures, strict=True):
            if failure is not None:
                await self._stop(engines)
                if isinstance(failure, EngineFailed):
                    raise EngineFailed(f"{name}: {failure}", failure.log_lines) from failure
                raise failure
        return replace(fleet, deployments=tuple(self._addressed(one) for one in fleet.deployments))

    async def stop_all_but(self, deployments: Collection[str]) -> None:
        await self._stop(self._running.keys() - set(deployments))

    def not_ready(self) -> list[str]:
        """Deployments whose engine does not run at the moment."""
        return [name for name, (_, engine) in self._running.items() if engine.state != "ready"]

    async def _stop(self, names: Collection[str]) -> None:
        engines = [self._running.pop(name)[1] for name in list(names)]
        await asyncio.gather(*(engine.stop() for engine in engines))

    async def _engine(self, name: str, wish: _Wish) -> SupervisedEngine:
        launch = wish.launch
        if launch.engine == "mock":
            return MockProcess(
                wish.model,
                context_tokens=wish.context_tokens,
                pace_ms=launch.pace_ms,
                first_token_ms=launch.first_token_ms,
                deployment=name,
            )
        file = launch.model_file or await self._default_model_file()
        return LocalEngine(
            file, slots=wish.slots, context_tokens=wish.context_tokens, deployment=name
        )

    def _addressed(self, deployment: Deployment) -> Deployment:
        found = self._running.get(deployment.id)
        return deployment if found is None else replace(deployment, base_url=found[1].base_url)


def _wishes(fleet: Fleet) -> dict[str, _Wish]:
    models = {model.id: model for model in fleet.models}
    return {
        deployment.id: _wish(deployment, models[deployment.model], launch)
        for deployment in fleet.deployments
        if (launch := fleet.launches.get(deployment.id)) is not None
    }


def _wish(deployment: Deployment, model: Model, launch: Launch) -> _Wish:
    slots = deployment.slots if launch.engine == "llama.cpp" else 0  # the mock has no limit
    return _Wish(launch, deployment.upstream_model, model.context_tokens, slots)
