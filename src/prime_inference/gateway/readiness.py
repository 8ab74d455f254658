"""Asks deployments whether they can serve, each in the way that tells the truth.

| kind | question | ready |
|---|---|---|
| llama.cpp | GET /health | 200; 503 while it loads |
| vllm | GET /health | 200; 503 once its engine has died |
| dynamo | GET /v1/models/NAME/ready | 200 and `"ready": true` |

`/health` of a Dynamo frontend says 200 without a single worker, and `/v1/models` lists a
model for seconds after its last worker has gone.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec

from prime_inference.domain.errors import UpstreamFailure, UpstreamTimeout
from prime_inference.domain.models import Deployment
from prime_inference.ports.catalog import Catalog
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.health import Health, Readiness
from prime_inference.wire.http_client import HttpPool, Origin

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0  # with two looks: an engine that says it drains is left within 10 s
ANSWER_SECONDS = 2.0  # an answer takes milliseconds
MAX_BODY_BYTES = 64 * 1024  # what Dynamo says of a model with a thousand workers


class HealthChecks:
    """Looks at every deployment that says how, again and again."""

    def __init__(
        self,
        catalog: Catalog,
        guard: Guard,
        random: Random,
        *,
        check_seconds: float = CHECK_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._catalog = catalog
        self._guard = guard
        self._random = random
        self._check_seconds = check_seconds
        self._answer_seconds = answer_seconds
        self._healths: dict[str, Health] = {}
        self.looks: dict[tuple[str, Readiness], int] = {}  # by deployment, for metrics

    async def run(self) -> None:
        """For ever."""
        while True:
            # replicas that started together do not look together
            await asyncio.sleep(self._check_seconds * (0.8 + 0.4 * self._random.random()))
            await self.look()

    async def look(self) -> None:
        """Look at every deployment once, at all of them at the same time."""
        checked = {
            one.id: one
            for model in self._catalog.models()
            for one in self._catalog.deployments(model.id)
            if one.health != "none"
        }
        for gone in self._healths.keys() - checked.keys():
            del self._healths[gone]
            self.looks = {key: count for key, count in self.looks.items() if key[0] != gone}
        await asyncio.gather(*(self._look_at(one) for one in checked.values()))

    async def _look_at(self, deployment: Deployment) -> None:
        found = await readiness(deployment, self._answer_seconds)
        key = (deployment.id, found)
        self.looks[key] = self.looks.get(key, 0) + 1
        health = self._healths.setdefault(deployment.id, Health())
        if health.looked(found, self._guard.signs_of_life(deployment.id)):
            log.warning(
                "deployment %s is %s: its last check found it %s",
                deployment.id,
                "healthy" if health.healthy else "unhealthy",
                found.value,
            )
        self._guard.set_health(deployment.id, health.healthy, down=health.down)


async def readiness(deployment: Deployment, seconds: float) -> Readiness:
    """One look at a deployment, at most so long."""
    origin = Origin.parse(deployment.base_url)
    if deployment.health == "dynamo":
        name = quote(deployment.upstream_model, safe="")
        path, ready = f"{origin.prefix}/models/{name}/ready", _says_ready
    else:
        path, ready = "/health", _anything
    pool = HttpPool(Origin(origin.host, origin.port, ""), idle=0)
    try:
        async with asyncio.timeout(seconds):
            response = await pool.fetch("GET", path, b"", connect_seconds=seconds)
            body = await response.read(MAX_BODY_BYTES)
    except (TimeoutError, UpstreamTimeout):
        return Readiness.SILENT
    except UpstreamFailure:
        return Readiness.UNREACHABLE
    finally:
        pool.close()
    return Readiness.READY if response.status == 200 and ready(body) else Readiness.NOT_READY


def _anything(body: bytes) -> bool:
    """The status has said it all."""
    return True


def _says_ready(body: bytes) -> bool:
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return False
    return document.get("ready") is True
