"""The deployments this gateway talks to: connections, slots and what has been seen of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from prime_inference.domain.generation import Generation
from prime_inference.domain.models import Deployment
from prime_inference.domain.tool_verdict import ToolVerdict
from prime_inference.gateway.statistics import EndpointStatistics
from prime_inference.ports.catalog import Catalog
from prime_inference.wire.http_client import HttpPool, Origin
from prime_inference.wire.resolver import Resolver

IDLE_CONNECTIONS = 256  # as many as requests that usually run at a time


class Upstream:
    """One deployment as this process sees it."""

    def __init__(self, deployment: Deployment, revision: str, resolver: Resolver) -> None:
        self.deployment = deployment
        self.revision = revision  # what it serves now: its own, or its model's
        self._resolver = resolver
        # llama.cpp closes a connection without notice after one streamed answer in three
        idle = 0 if deployment.engine == "llama.cpp" else IDLE_CONNECTIONS
        self.pool = HttpPool(
            Origin.parse(deployment.base_url),
            idle=idle,
            headers=b"content-type: application/json\r\n",
            resolver=resolver,
        )
        self.statistics = EndpointStatistics()
        self.refusals = 0  # answers that said that it takes no requests of ours

    def leads_to(self, deployment: Deployment) -> bool:
        """Whether its connections are right for `deployment`.

        With another revision they are not: what was begun on them came of the one of before.
        """
        mine, its = self.deployment, deployment
        same_place = (mine.base_url, mine.engine) == (its.base_url, its.engine)
        return same_place and mine.revision == its.revision

    @cached_property
    def root(self) -> HttpPool:
        """What the engine serves outside its OpenAI API. No connection is kept."""
        origin = self.pool.origin
        origin = replace(origin, prefix=origin.prefix.removesuffix("/v1"))
        headers = b"content-type: application/json\r\n"
        return HttpPool(origin, idle=0, headers=headers, resolver=self._resolver)


class Upstreams:
    """Makes and keeps an `Upstream` for each deployment of the catalogue."""

    def __init__(
        self, catalog: Catalog, now: Callable[[], float], resolver: Resolver | None = None
    ) -> None:
        self._catalog = catalog
        self._resolver = resolver or Resolver()
        self._now = now
        self._by_id: dict[str, Upstream] = {}
        self._on_route: dict[tuple[str, str], Sequence[Upstream]] = {}
        self._retired: list[HttpPool] = []  # of deployments that are gone, with requests on them

    def serving(self, model_id: str) -> Sequence[Upstream]:
        """The upstreams of a model; empty when it has none."""
        return [self._of(deployment) for deployment in self._catalog.deployments(model_id)]

    def find(self, deployment_id: str) -> Upstream | None:
        """The upstream of a deployment that has been in use; None if there is none."""
        return self._by_id.get(deployment_id)

    def on_route(self, model_id: str, route: str) -> Sequence[Upstream]:
        """The upstreams of a model that serve `route`, e.g. chat/completions."""
        known = self._on_route.get((model_id, route))
        if known is None:
            serving = self.serving(model_id)
            known = tuple(each for each in serving if route in each.deployment.routes)
            self._on_route[model_id, route] = known
        return known

    def record(self, generations: Sequence[Generation]) -> None:
        """Note whole answers. Implements `ports.generations.GenerationSink`.

        Failures are noted attempt by attempt, since a generation can outlive several.
        """
        for generation in generations:
            upstream = self._by_id.get(generation.deployment)
            if upstream is None or generation.outcome != "complete":
                continue
            seconds = generation.duration_seconds
            usage, now = generation.usage, self._now()
            rate = usage.completion_tokens / seconds if seconds else 0.0
            upstream.statistics.success(now, generation.first_token_seconds, rate)
            upstream.statistics.tokens(now, usage.prompt_tokens, usage.cached_tokens)

    def refresh(self) -> None:
        """Take over the catalogue as it is now.

        Connections of what is gone, or has moved, are closed as their requests end.
        """
        wanted = {
            deployment.id: deployment
            for model in self._catalog.models()
            for deployment in self._catalog.deployments(model.id)
        }
        for name, upstream in list(self._by_id.items()):
            spec = wanted.get(name)
            if spec is not None and upstream.leads_to(spec):
                upstream.deployment, upstream.revision = spec, self._revision(spec)
            else:
                del self._by_id[name]
                upstream.pool.retire()
                self._retired.append(upstream.pool)
        self._retired = [pool for pool in self._retired if pool.connections]
        self._on_route.clear()

    def judged(self, verdict: ToolVerdict) -> None:
        """Note the tool calls of an answer. Implements `ports.tool_verdicts.ToolVerdictSink`."""
        upstream = self._by_id.get(verdict.deployment)
        if upstream is not None and verdict.finished_with_calls:
            upstream.statistics.tool_calls(self._now(), verdict.errors)

    def answers_with_calls(self, deployment_id: str) -> tuple[int, int]:
        """See `EndpointStatistics`; (0, 0) for a deployment that has not been in use."""
        upstream = self._by_id.get(deployment_id)
        return (0, 0) if upstream is None else upstream.statistics.answers_with_calls(self._now())

    def slot_speed(self, deployment: Deployment) -> float | None:
        """Output tokens per second of one of its slots: as declared, else the median of the last
        half hour's answers, at whatever load that was; None: nothing is known.
        """
        if deployment.tokens_per_second is not None:
            return deployment.tokens_per_second / deployment.slots
        upstream = self._by_id.get(deployment.id)
        measured = None if upstream is None else upstream.statistics.throughput(self._now())
        return None if measured is None else measured["p50"]

    def close(self) -> None:
        for pool in [*self._retired, *(each.pool for each in self._by_id.values())]:
            pool.close()

    def _of(self, deployment: Deployment) -> Upstream:
        upstream = self._by_id.get(deployment.id)
        if upstream is None:
            revision = self._revision(deployment)
            upstream = Upstream(deployment, revision, self._resolver)
            self._by_id[deployment.id] = upstream
        return upstream

    def _revision(self, deployment: Deployment) -> str:
        model = self._catalog.find(deployment.model)
        return deployment.revision or (model.revision if model is not None else "")
