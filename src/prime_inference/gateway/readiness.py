"""Asks deployments whether they can serve, each in the way that tells the truth.

| kind | question | ready |
|---|---|---|
| llama.cpp | GET /health | 200; 503 while it loads |
| vllm | GET /health | 200; 503 once its engine has died |
| dynamo | GET /v1/models/NAME/ready | 200 and `"ready": true` |

One that says that it is ready and turned a request away as if it took none of ours (a 401, 403,
404, ...: `upstream_errors.refuses_us`) is sent one of our own besides, on a spare slot. If that
is turned away too, it is not the client's doing: the deployment is unhealthy until it is not.

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
from prime_inference.gateway.canary import refusal
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.ports.catalog import Catalog
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.health import Health, Readiness
from prime_inference.reliability.slots import Refusal
from prime_inference.wire.http_client import HttpPool, Origin
from prime_inference.wire.resolver import Resolver

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
        resolver: Resolver | None = None,
        upstreams: Upstreams | None = None,
    ) -> None:
        self._resolver = resolver or Resolver()
        self._upstreams = upstreams
        self._refusals: dict[str, int] = {}  # that were looked into, by deployment
        self._refusing: set[str] = set()  # that turned our own request away
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
            if one.health != "none" or self._suspected(one.id)
        }
        for gone in self._healths.keys() - checked.keys():
            del self._healths[gone]
            self._refusals.pop(gone, None)
            self._refusing.discard(gone)
            self.looks = {key: count for key, count in self.looks.items() if key[0] != gone}
        await asyncio.gather(*(self._look_at(one) for one in checked.values()))

    async def _look_at(self, deployment: Deployment) -> None:
        found = Readiness.READY
        if deployment.health != "none":
            found = await readiness(deployment, self._answer_seconds, self._resolver)
        if found is Readiness.READY and await self._refused(deployment.id):
            found = Readiness.REFUSING
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

    def _suspected(self, deployment: str) -> bool:
        """Whether it turned a request away since that was last looked into, or did it then."""
        upstream = self._upstreams.find(deployment) if self._upstreams is not None else None
        if upstream is None:
            return False
        new = upstream.refusals != self._refusals.get(deployment, 0)
        return new or deployment in self._refusing

    async def _refused(self, deployment: str) -> bool:
        """Whether it turns away a request of our own; it is sent one only where that is likely."""
        upstream = self._upstreams.find(deployment) if self._upstreams is not None else None
        if upstream is None or not self._suspected(deployment):
            return False
        slot = self._guard.admit(deployment)
        if isinstance(slot, Refusal):  # no slot is spare
            return deployment in self._refusing
        self._refusals[deployment] = upstream.refusals
        try:
            status = await refusal(upstream, self._answer_seconds)
        finally:
            slot.release()
        if not status:
            self._refusing.discard(deployment)
        elif deployment not in self._refusing:
            self._refusing.add(deployment)
            log.warning(
                "deployment %s turns our own request away (HTTP %d): see to its credentials,"
                " base_url and upstream_model",
                deployment,
                status,
            )
        return bool(status)


async def readiness(
    deployment: Deployment, seconds: float, resolver: Resolver | None = None
) -> Readiness:
    """One look at a deployment, at most so long."""
    origin = Origin.parse(deployment.base_url)
    if deployment.health == "dynamo":
        name = quote(deployment.upstream_model, safe="")
        path, ready = f"{origin.prefix}/models/{name}/ready", _says_ready
    else:
        path, ready = "/health", _anything
    pool = HttpPool(Origin(origin.host, origin.port, ""), idle=0, resolver=resolver)
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
