"""The life of a generation: choose, attempt, fail over, settle (docs/architecture.md)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from prime_inference.domain.errors import (
    ApiError,
    ContextTooSmall,
    InternalFailure,
    ModelNotFound,
    ShuttingDown,
    UpstreamFailure,
    UpstreamRefused,
)
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.models import Model
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.gateway import continuation
from prime_inference.gateway.billing import Billing, charging
from prime_inference.gateway.clocks import ClockLimits, Deadlines
from prime_inference.gateway.failover import Failover
from prime_inference.gateway.operations import Operation, unsupported
from prime_inference.gateway.relay import STREAM_HEADERS, StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import session_of
from prime_inference.gateway.settlement import Settlement
from prime_inference.gateway.stream_attempts import StreamAttempts
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.gateway.whole_attempts import WholeAttempts
from prime_inference.ports.catalog import Catalog
from prime_inference.reliability.guard import Guard
from prime_inference.routing.tool_calls import ToolCallRanking
from prime_inference.wire.http import Reply, header_lines
from prime_inference.wire.openai.errors import JSON_TYPE

JSON_HEADERS = header_lines([JSON_TYPE])
CLIENT_LEFT = 499  # nginx's status for it; it stands in the log, nobody is sent it


class Inference:
    """Serves operations from the catalogue's deployments."""

    def __init__(
        self,
        catalog: Catalog,
        upstreams: Upstreams,
        guard: Guard,
        settlement: Settlement,
        tool_calls: ToolCalls,
        ranking: ToolCallRanking,
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
        self._begun = guard.reserved.knows
        self._failover = Failover(guard, upstreams, self._deadlines, ranking)
        self._streams = StreamAttempts(clocks, self._deadlines, tool_calls)
        self._wholes = WholeAttempts(clocks, self._deadlines, tool_calls)
        self._keep_alive_seconds = keep_alive_seconds

    async def serve(self, operation: Operation, key: ApiKey, request_id: str, reply: Reply) -> None:
        """Answer one operation. Raises ApiError if nothing has been written yet."""
        run = Run(
            request_id, operation, key, self._deadlines.now(), time.time(), pool=operation.pool
        )
        self.in_flight += 1
        try:
            model = self._model(operation)
            run.model = model.id
            able = self._able(operation, model)
            if operation.session or len(able) > 1:
                run.session = session_of(key.tenant, operation)
            if self._billing is not None:
                await self._billing.admit(run, model, self._begun)
            if operation.stream:
                await self._stream(run, model, able, reply)
            else:
                await self._whole(run, model, able, reply)
            run.outcome = "complete"
        except asyncio.CancelledError:
            _broken_off(run, reply)
            if not reply.server_stops:
                raise
        except ApiError as error:
            run.outcome = "failed" if _is_failure(error) else "refused"
            run.status, run.error = error.status, error.code
            if not reply.started:
                raise
            error.dealt_with()
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

    def _able(self, operation: Operation, model: Model) -> Sequence[Upstream]:
        """Those that serve the route and honour every parameter."""
        serving = self._upstreams.on_route(model.id, operation.route)
        if not serving:
            raise ModelNotFound(f"{model.id} does not serve /{operation.route}.", param="model")
        if operation.asks_nothing_special:
            return serving
        able = [upstream for upstream in serving if operation.missing(upstream.deployment) is None]
        if not able:
            name = operation.missing(serving[0].deployment)
            assert name is not None
            raise unsupported(name, model.id)
        return able

    # -- serving

    async def _stream(self, run: Run, model: Model, able: Sequence[Upstream], reply: Reply) -> None:
        relay = StreamRelay(
            run.operation,
            reply,
            answer_id=run.answer_id,
            created=run.created,
            headers=partial(run.headers, STREAM_HEADERS),
            deadlines=self._deadlines,
            keep_alive_seconds=self._keep_alive_seconds,
            charge=charging(run, self._deadlines.now),
        )
        try:
            keep_record = len(able) > 1 and continuation.may_resume(run.operation)
            await self._failover.first_that_answers(
                run,
                able,
                partial(self._streams.attempt, run, model, relay, keep_record),
                partial(self._streams.contend, run, model, relay, keep_record),
            )
        except ApiError as error:
            relay.fail(error)
            raise
        except asyncio.CancelledError:
            if reply.server_stops:
                relay.fail(ShuttingDown())
            raise
        finally:
            relay.stop()

    async def _whole(self, run: Run, model: Model, able: Sequence[Upstream], reply: Reply) -> None:
        body = await self._failover.first_that_answers(
            run,
            able,
            partial(self._wholes.attempt, run, model),
            partial(self._wholes.contend, run, model),
        )
        reply.send(200, run.headers(JSON_HEADERS), body)


def _broken_off(run: Run, reply: Reply) -> None:
    """Note who ended it before its time. Raises ShuttingDown where we did and nobody was told."""
    if not reply.server_stops:
        run.outcome, run.status, run.error = "cancelled", CLIENT_LEFT, "client_left"
        return
    run.outcome, run.status, run.error = "shutdown", ShuttingDown.status, "shutdown"
    if not reply.started:
        raise ShuttingDown from None


def _is_failure(error: ApiError) -> bool:
    """Whether it is a deployment's failure rather than the request's own fault."""
    return isinstance(error, UpstreamFailure) and not isinstance(
        error, UpstreamRefused | ContextTooSmall
    )
