"""Asks processes how they are. `/health` of a Dynamo frontend answers 200 without any worker,
so the readiness of a model is asked for by name.

Whatever answers may be broken, hostile or another program: every question has a clock over all
of it and every answer a size, and any text is an answer or none.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from typing import Any
from urllib.parse import quote

import httpx
from msgspec import Struct

from prime_inference.domain.fleet import MOST_COUNT
from prime_inference.fleet.launcher.lifecycle import Readiness

PROBE_SECONDS = 2.0  # an answer takes milliseconds; a frozen process none
MAX_READY_BYTES = 256 * 1024  # a role takes 100 bytes
MAX_METRICS_BYTES = 2 * 1024 * 1024  # processes write tens of kB; this is read in tens of ms

IN_FLIGHT = re.compile(r"\ndynamo_frontend_inflight_requests\{([^\n]*)")


class Answer(Struct, frozen=True):
    """What came in time: the status, and the body if all of it did."""

    status: int
    body: bytes | None


def probing_client() -> httpx.AsyncClient:
    """For `ask`: one that is slow keeps no connection from the others."""
    return httpx.AsyncClient(
        timeout=PROBE_SECONDS,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
        headers={"accept-encoding": "identity"},  # what is small packed may be large unpacked
    )


async def ask(
    client: httpx.AsyncClient, url: str, max_bytes: int, seconds: float = PROBE_SECONDS
) -> Answer | None:
    """`seconds` are those of the whole answer; None where not even its status came in them."""
    status = None
    body = bytearray()
    try:
        async with asyncio.timeout(seconds), client.stream("GET", url) as answer:
            status = answer.status_code
            async for part in answer.aiter_raw():
                body += part
                if len(body) > max_bytes:
                    return Answer(status, None)
            return Answer(status, bytes(body))
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
        return None if status is None else Answer(status, None)


class Prober:
    """HTTP questions on loopback. Close it."""

    def __init__(self) -> None:
        self._client = probing_client()

    async def close(self) -> None:
        await self._client.aclose()

    async def _ask(self, port: int, path: str, max_bytes: int = MAX_READY_BYTES) -> Answer | None:
        return await ask(self._client, f"http://127.0.0.1:{port}{path}", max_bytes)

    async def readiness(self, port: int, model: str) -> Readiness | None:
        """What a frontend says of a model; None without an answer in time."""
        answer = await self._ask(port, f"/v1/models/{quote(model, safe='')}/ready")
        return None if answer is None or answer.body is None else read_readiness(answer.body)

    async def responds(self, port: int, path: str) -> bool:
        """Whether anything answers there, whatever it says."""
        return await self._ask(port, path) is not None

    async def succeeds(self, port: int, path: str) -> bool:
        """Whether the answer there is a success."""
        answer = await self._ask(port, path)
        return answer is not None and 200 <= answer.status < 300

    async def metrics(self, port: int) -> str:
        """What a process counts, in Prometheus' text; empty where it does not answer."""
        answer = await self._ask(port, "/metrics", MAX_METRICS_BYTES)
        return "" if answer is None else (answer.body or b"").decode(errors="replace")

    async def in_flight(self, port: int) -> int | None:
        """Requests a frontend works on; None where it does not say."""
        return parse_in_flight(await self.metrics(port))


def parse_in_flight(text: str) -> int | None:
    """Of a frontend's `/metrics`; None where it does not say, or says what is no count."""
    lines = IN_FLIGHT.findall("\n" + text)  # the text may be large, and have millions of lines
    try:
        counts = [float(line.rpartition(" ")[2]) for line in lines]
    except ValueError:
        return None
    whole = all(0 <= count <= MOST_COUNT for count in counts)  # not so for NaN
    return round(math.fsum(counts)) if counts and whole else None


def read_readiness(body: bytes) -> Readiness | None:
    """Of `GET /v1/models/NAME/ready`; None for what is no JSON."""
    try:
        return parse_readiness(json.loads(body))
    except (ValueError, RecursionError):
        return None


def parse_readiness(document: Any) -> Readiness:
    """Workers of all namespaces are added up; what has another shape says nothing."""
    if not isinstance(document, dict):
        return Readiness(False)
    workers: dict[str, int] = {}
    for namespace in _values(document.get("namespaces")):
        types = namespace.get("worker_types") if isinstance(namespace, dict) else None
        for role, entry in types.items() if isinstance(types, dict) else ():
            count = entry.get("workers", 0) if isinstance(entry, dict) else None
            if type(count) is int and 0 <= count <= MOST_COUNT:
                workers[role] = workers.get(role, 0) + count
    return Readiness(document.get("ready") is True, workers)


def _values(document: Any) -> list[Any]:
    return list(document.values()) if isinstance(document, dict) else []
