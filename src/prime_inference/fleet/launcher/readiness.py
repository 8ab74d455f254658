"""Asks processes how they are. `/health` of a Dynamo frontend answers 200 without any worker,
so the readiness of a model is asked for by name.

Whatever answers may be broken, hostile or another program: any text is an answer or none, and
no text of it goes any further.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import quote

from prime_inference.domain.fleet import MOST_COUNT
from prime_inference.fleet.launcher.asking import Answer, Asker
from prime_inference.fleet.launcher.lifecycle import Readiness

ROLES = ("prefill", "decode", "aggregated")
MAX_READY_BYTES = 256 * 1024  # a role takes 100 bytes
MAX_METRICS_BYTES = 2 * 1024 * 1024  # processes write tens of kB; this is read in tens of ms

IN_FLIGHT = re.compile(r"\ndynamo_frontend_inflight_requests\{([^\n]*)")


class Prober:
    """HTTP questions on loopback."""

    def __init__(self) -> None:
        self._asker = Asker()

    async def _ask(self, port: int, path: str, max_bytes: int = MAX_READY_BYTES) -> Answer | None:
        return await self._asker.ask(f"http://127.0.0.1:{port}{path}", max_bytes)

    async def readiness(self, port: int, model: str) -> Readiness | None:
        """What a frontend says of a model; None without an answer in time."""
        answer = await self._ask(port, f"/v1/models/{quote(model, safe='')}/ready")
        if answer is None or answer.body is None:
            return None
        seen = read_readiness(answer.body)
        return seen if seen is None or answer.success else Readiness(False, seen.workers)

    async def responds(self, port: int, path: str) -> bool:
        """Whether anything answers there, whatever it says."""
        return await self._ask(port, path) is not None

    async def succeeds(self, port: int, path: str) -> bool:
        """Whether the answer there is a success."""
        answer = await self._ask(port, path)
        return answer is not None and answer.success

    async def metrics(self, port: int) -> str:
        """What a process counts, in Prometheus' text; empty where it does not say."""
        return metrics_text(await self._ask(port, "/metrics", MAX_METRICS_BYTES))

    async def in_flight(self, port: int) -> int | None:
        """Requests a frontend works on; None where it does not say."""
        return parse_in_flight(await self.metrics(port))


def metrics_text(answer: Answer | None) -> str:
    """Of `/metrics`; empty where the answer is none, or no success."""
    if answer is None or answer.body is None or not answer.success:
        return ""
    return answer.body.decode(errors="replace")


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
    """Workers of all namespaces are added up; what has another shape, or is of no role that we
    know, says nothing."""
    if not isinstance(document, dict):
        return Readiness(False)
    workers: dict[str, int] = {}
    for namespace in _values(document.get("namespaces")):
        types = namespace.get("worker_types") if isinstance(namespace, dict) else None
        for role, entry in types.items() if isinstance(types, dict) else ():
            count = entry.get("workers", 0) if isinstance(entry, dict) else None
            if role in ROLES and type(count) is int and 0 <= count <= MOST_COUNT:
                workers[role] = workers.get(role, 0) + count
    return Readiness(document.get("ready") is True, workers)


def _values(document: Any) -> list[Any]:
    return list(document.values()) if isinstance(document, dict) else []
