"""The deployments this gateway talks to: connections, slots and what has been seen of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prime_inference.domain.generation import Generation
from prime_inference.domain.models import Deployment
from prime_inference.gateway.statistics import EndpointStatistics
from prime_inference.ports.catalog import Catalog
from prime_inference.wire.http_client import HttpPool, Origin

IDLE_CONNECTIONS = 256  # as many as requests that usually run at a time


class Upstream:
    """One deployment as this process sees it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        # llama.cpp closes a connection without notice after one streamed answer in three
        idle = 0 if deployment.engine == "llama.cpp" else IDLE_CONNECTIONS
        self.pool = HttpPool(
            Origin.parse(deployment.base_url),
            idle=idle,
            headers=b"content-type: application/json\r\n",
        )
        self.statistics = EndpointStatistics()


class Upstreams:
    """Makes and keeps an `Upstream` for each deployment of the catalogue."""

    def __init__(self, catalog: Catalog, now: Callable[[], float]) -> None:
        self._catalog = catalog
        self._now = now
        self._by_id: dict[str, Upstream] = {}
        self._on_route: dict[tuple[str, str], Sequence[Upstream]] = {}

    def serving(self, model_id: str) -> Sequence[Upstream]:
        """The upstreams of a model; empty when it has none."""
        return [self._of(deployment) for deployment in self._catalog.deployments(model_id)]

    def on_route(self, model_id: str, route: str) -> Sequence[Upstream]:
        """The upstreams of a model that serve `route`, e.g. chat/completions."""
        known = self._on_route.get((model_id, route))
        if known is None:
            serving = self.serving(model_id)
            known = tuple(each for each in serving if route in each.deployment.routes)
            self._on_route[model_id, route] = known
        return known

    def changed(self) -> None:
        """Forget what followed from the catalogue's earlier content."""
        self._on_route.clear()

    def record(self, generations: Sequence[Generation]) -> None:
        """Note whole answers. Implements `ports.generations.GenerationSink`.

        Failures are noted attempt by attempt, since a generation can outlive several.
        """
        for generation in generations:
            upstream = self._by_id.get(generation.deployment)
            if upstream is None or generation.outcome != "complete":
                continue
            seconds = generation.duration_seconds
            rate = generation.usage.completion_tokens / seconds if seconds else 0.0
            upstream.statistics.success(self._now(), generation.first_token_seconds, rate)

    def close(self) -> None:
        for upstream in self._by_id.values():
            upstream.pool.close()

    def _of(self, deployment: Deployment) -> Upstream:
        upstream = self._by_id.get(deployment.id)
        if upstream is None or upstream.deployment is not deployment:
            upstream = self._by_id[deployment.id] = Upstream(deployment)
        return upstream
