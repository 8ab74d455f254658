"""A fleet that follows a file of ready deployments (`fleet.ready` has its format)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec

from prime_inference.domain.fleet import Fleet, FleetInvalid
from prime_inference.domain.models import Deployment, Model
from prime_inference.fleet.ready import ReadyDeployment, parse_down, parse_ready
from prime_inference.wire.http_client import Origin

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # one stat of the file: 2 us


class ReadyFleet:
    """The fleet that the file lists.

    A model that once had deployments keeps the last ones when none is ready any more: if all
    of them are said to be down at a time, whoever says so may be wrong, and the breakers see
    for themselves. The same holds for a file that cannot be read.
    """

    def __init__(self, path: Path, parameters: frozenset[str], now: Callable[[], float]) -> None:
        self._path = path
        self._parameters = parameters
        self._now = now
        self._seen: tuple[int, int] | None = None
        self._ready: list[ReadyDeployment] = []
        self._deployments: dict[ReadyDeployment, Deployment] = {}
        self._models: dict[str, Model] = {}
        self.down: frozenset[str] = frozenset()  # ids that are said to be down

    @property
    def models(self) -> tuple[Model, ...]:
        """Every model that was ever listed."""
        return tuple(self._models.values())

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        """What is ready, and what was last ready of models of which nothing is."""
        return tuple(self._deployments.values())

    def not_ready(self) -> str | None:
        """Why no request can be served, or None."""
        return None if self._ready else "no deployment is ready"

    def read(self) -> bool:
        """Take over the file if it is a new one; whether it was."""
        try:
            found = self._path.stat()
            mark = (found.st_mtime_ns, found.st_ino)
            if mark == self._seen:
                return False
            content = self._path.read_bytes()
            ready, down = parse_ready(content), parse_down(content)
            for one in ready:
                Origin.parse(one.base_url)
        except FileNotFoundError:
            return False
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            log.error("%s cannot be read: %s", self._path, error)
            return False
        self._seen = mark
        self._take(ready)
        self.down = frozenset(down)
        return True

    async def follow(
        self,
        serve: Callable[[Fleet], None],
        said_down: Callable[[Collection[str]], None] = lambda names: None,
    ) -> None:
        """Look at the file for ever; each new fleet is given to `serve`, then who is down."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self.read() or not self._models:
                continue
            try:
                self._serve(serve)
                said_down(self.down)
            except Exception:  # a defect: the file is read again when this is started again
                self._seen = None
                raise

    def _serve(self, serve: Callable[[Fleet], None]) -> None:
        log.info("%d deployments are ready", len(self._ready))
        datacenters = dict.fromkeys(one.datacenter for one in self.deployments)
        try:
            serve(Fleet(self.models, self.deployments, tuple(datacenters)))
        except FleetInvalid as error:
            log.error("the fleet stays as it is: %s", error)

    def _take(self, ready: list[ReadyDeployment]) -> None:
        served = {one.model for one in ready}
        self._ready = ready
        kept = [one for one in self._deployments if one.model not in served]
        # one that did not change stays the same object: connections to it are kept
        self._deployments = {
            one: self._deployments.get(one) or self._deployment(one) for one in [*ready, *kept]
        }
        for one in ready:
            if one.model not in self._models:
                self._models[one.model] = self._model(one)

    def _model(self, one: ReadyDeployment) -> Model:
        return Model(
            id=one.model,
            revision=one.revision,
            created=int(self._now()),
            context_tokens=one.context_tokens,
            max_output_tokens=one.max_output_tokens,
        )

    def _deployment(self, one: ReadyDeployment) -> Deployment:
        return Deployment(
            id=one.id,
            model=one.model,
            datacenter=one.datacenter,
            base_url=one.base_url,
            engine="dynamo",
            slots=one.slots,
            upstream_model=one.model,
            parameters=self._parameters,
            routes=frozenset(one.routes),
        )
