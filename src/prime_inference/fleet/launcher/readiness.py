"""Asks processes how they are. `/health` of a Dynamo frontend answers 200 without any worker,
so the readiness of a model is asked for by name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from prime_inference.fleet.launcher.lifecycle import Readiness

PROBE_SECONDS = 2.0  # an answer takes milliseconds; a frozen process none


class Prober:
    """HTTP questions on loopback. Close it."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=PROBE_SECONDS, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def readiness(self, port: int, model: str) -> Readiness | None:
        """What a frontend says of a model; None without an answer in time."""
        try:
            path = f"/v1/models/{quote(model, safe='')}/ready"
            answer = await self._client.get(f"http://127.0.0.1:{port}{path}")
            return parse_readiness(answer.json())
        except (httpx.HTTPError, ValueError):
            return None

    async def responds(self, port: int, path: str) -> bool:
        """Whether anything answers there, whatever it says."""
        try:
            await self._client.get(f"http://127.0.0.1:{port}{path}")
        except httpx.HTTPError:
            return False
        return True

    async def succeeds(self, port: int, path: str) -> bool:
        """Whether the answer there is a success."""
        try:
            return (await self._client.get(f"http://127.0.0.1:{port}{path}")).is_success
        except httpx.HTTPError:
            return False

    async def metrics(self, port: int) -> str:
        """What a process counts, in Prometheus' text; empty where it does not answer."""
        try:
            return (await self._client.get(f"http://127.0.0.1:{port}/metrics")).text
        except httpx.HTTPError:
            return ""

    async def in_flight(self, port: int) -> int | None:
        """Requests a frontend works on; None where it does not say."""
        return parse_in_flight(await self.metrics(port))


def parse_in_flight(text: str) -> int | None:
    """Of a frontend's `/metrics`; None where it does not say."""
    name = "dynamo_frontend_inflight_requests{"
    lines = [line for line in text.splitlines() if line.startswith(name)]
    return round(sum(float(line.rpartition(" ")[2]) for line in lines)) if lines else None


def parse_readiness(document: Any) -> Readiness:
    """Of `GET /v1/models/NAME/ready`; workers of all namespaces are added up."""
    if not isinstance(document, dict):
        return Readiness(False)
    workers: dict[str, int] = {}
    for namespace in (document.get("namespaces") or {}).values():
        for role, entry in (namespace.get("worker_types") or {}).items():
            workers[role] = workers.get(role, 0) + int(entry.get("workers", 0))
    return Readiness(document.get("ready") is True, workers)
