"""The life of a generation: choose, attempt, fail over, settle (docs/architecture.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from prime_inference.domain.errors import (
    ApiError,
    CapacityExhausted,
    InternalFailure,
    ModelNotFound,
    UpstreamFailure,
    UpstreamRefused,
)
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.models import Model
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.gateway.attempts import Attempts
from prime_inference.gateway.billing import Billing, charging
from prime_inference.gateway.clocks import ClockLimits, Deadlines
from prime_inference.gateway.operations import Operation, unsupported
from prime_inference.gateway.relay import STREAM_HEADERS, StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.settlement import Settlement
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.ports.catalog import Catalog
from prime_inference.routing.choose import order
from prime_inference.wire.http import Reply, header_lines
from prime_inference.wire.openai.errors import JSON_TYPE

JSON_HEADERS = header_lines([JSON_TYPE])
CLIENT_LEFT = 499  # nginx's status for it; it stands in the log, nobody is sent it


T = TypeVar("T")


class Inference:
    """Serves operations from the catalogue's deployments."""

    def __init__(
        self,
        catalog: Catalog,
        upstreams: Upstreams,
        settlement: Settlement,
        *,
        clocks: ClockLimits,
        keep_alive_seconds: float,
        billing: Billing | None = None,
    ) -> None:
        self._billing = billing
        self._catalog = catalog
        self._upstreams = upstreams
        self._settlement = settlement
        self.in_flight = 0
        self._deadlines = Deadlines()
        self._attempts = Attempts(clocks, self._deadlines)
        self._keep_alive_seconds = keep_alive_seconds

    async def serve(self, operation: Operation, key: ApiKey, request_id: str, reply: Reply) -> None:
        """Answer one operation. Raises ApiError if nothing has been written yet."""
        run = Run(request_id, operation, key, self._deadlines.now(), time.time())
        self.in_flight += 1
        try:
            model = self._model(operation)
            run.model = model.id
            if self._billing is not None:
                await self._billing.admit(run, model)
            upstreams = self._candidates(operation, model)
            if operation.stream:
                await self._stream(run, model, upstreams, reply)
            else:
                await self._whole(run, model, upstreams, reply)
            run.outcome = "complete"
        except asyncio.CancelledError:
            run.outcome = "cancelled"
            run.status, run.error = CLIENT_LEFT, "client_left"
            raise
        except ApiError as error:
            run.outcome = "failed" if _is_failure(error) else "refused"
            run.status, run.error = error.status, error.code
            if not reply.started:
                raise
        except Exception:
            run.outcome = "failed"
            run.status, run.error = InternalFailure.status, InternalFailure.code
            raise
        finally:
            self.in_flight -= 1
            generation = run.generation(self._deadlines.now())
            if run.account is not None:
                run.account.close(generation)
            self._settlement.add(generation)

    # -- choosing

    def _model(self, operation: Operation) -> Model:
        model = self._catalog.find(operation.model)
        if model is None:
            known = [model.id for model in self._catalog.models()]
            hint = did_you_mean(operation.model, known) or " GET /api/v1/models lists them."
            raise ModelNotFound(
                f"The model '{operation.model}' does not exist.{hint}", param="model"
            )
        operation.check(model)
        return model

    def _candidates(self, operation: Operation, model: Model) -> Sequence[Upstream]:
        serving = [
            upstream
            for upstream in self._upstreams.serving(model.id)
            if operation.route in upstream.deployment.routes
        ]
        if not serving:
            raise ModelNotFound(f"{model.id} does not serve /{operation.route}.", param="model")
        if len(serving) == 1 and operation.missing(serving[0].deployment) is None:
            return serving
        able = [upstream for upstream in serving if operation.missing(upstream.deployment) is None]
        if not able:
            name = operation.missing(serving[0].deployment)
            assert name is not None
            raise unsupported(name, model.id)
        return order(able)

    # -- serving

    async def _stream(
        self, run: Run, model: Model, upstreams: Iterable[Upstream], reply: Reply
    ) -> None:
        relay = StreamRelay(
            run.operation,
            reply,
            answer_id=run.answer_id,
            created=run.created,
            headers=run.headers(STREAM_HEADERS),
            deadlines=self._deadlines,
            keep_alive_seconds=self._keep_alive_seconds,
            charge=charging(run, self._deadlines.now),
        )
        try:
            await self._first_that_answers(
                run, upstreams, partial(self._attempts.stream, run, model, relay)
            )
        except ApiError as error:
            relay.fail(error)
            raise
        finally:
            relay.stop()

    async def _whole(
        self, run: Run, model: Model, upstreams: Iterable[Upstream], reply: Reply
    ) -> None:
        body = await self._first_that_answers(
            run, upstreams, partial(self._attempts.whole, run, model)
        )
        reply.send(200, run.headers(JSON_HEADERS), body)

    async def _first_that_answers(
        self,
        run: Run,
        upstreams: Iterable[Upstream],
        attempt: Callable[[Upstream], Awaitable[T]],
    ) -> T:
        """Try each upstream once until one answers. Raises the failure that tells most."""
        failures: list[UpstreamFailure] = []
        for upstream in upstreams:
            run.deployment = upstream.deployment.id
            try:
                upstream.take_slot()
                try:
                    return await attempt(upstream)
                finally:
                    upstream.give_slot()
            except UpstreamFailure as failure:
                if isinstance(failure, UpstreamRefused):
                    raise
                if not isinstance(failure, CapacityExhausted):
                    upstream.statistics.failure(self._deadlines.now())
                if run.committed:
                    raise
                failures.append(failure)
        raise min(failures, key=_says_less)


def _is_failure(error: ApiError) -> bool:
    """Whether it is a deployment's failure rather than the request's own fault."""
    return isinstance(error, UpstreamFailure) and not isinstance(error, UpstreamRefused)


def _says_less(failure: UpstreamFailure) -> tuple[bool, float]:
    """A failure says more than a full deployment; of those, the one that frees up first."""
    return isinstance(failure, CapacityExhausted), failure.retry_after or 0.0
