"""One try of a request on one deployment."""

from __future__ import annotations

from prime_inference.domain.errors import UpstreamFailure, UpstreamMalformed
from prime_inference.domain.models import Model
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines
from prime_inference.gateway.relay import StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.upstream_errors import MAX_ERROR_BYTES, upstream_error
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.slots import Slot
from prime_inference.routing.affinity import session_key
from prime_inference.wire.event_stream import EventStream
from prime_inference.wire.http_client import Response
from prime_inference.wire.openai.answers import Answer, answer_usage, decode_answer
from prime_inference.wire.openai.collect import AnswerCollector
from prime_inference.wire.openai.embeddings import rebuild_embeddings
from prime_inference.wire.openai.logprobs import keep_alternatives
from prime_inference.wire.openai.whole import rebuild_answer

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # 2,048 embeddings of 1,024 floats are half of it


class Attempts:
    """Makes attempts; each has connections, clocks and parsing state of its own."""

    def __init__(self, clocks: ClockLimits, deadlines: Deadlines) -> None:
        self._clocks = clocks
        self._deadlines = deadlines

    async def stream(
        self, run: Run, model: Model, relay: StreamRelay, upstream: Upstream, slot: Slot
    ) -> None:
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=True)
        response: Response | None = None
        stream = relay.begin(slot.first_token)
        try:
            response = await self._open(run, model, upstream, clocks)
            await relay.relay(response, clocks)
        finally:
            clocks.stop()
            run.usage = stream.usage
            if relay.committed:
                run.committed = True
                run.first_token = relay.first_content_at - run.started
            if response is not None:
                response.release() if relay.complete else response.close()

    async def whole(self, run: Run, model: Model, upstream: Upstream, slot: Slot) -> bytes:
        """The client's body. Raises ApiError."""
        operation = run.operation
        streamed = operation.streams_from(upstream.deployment)
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=streamed)
        response: Response | None = None
        try:
            response = await self._open(run, model, upstream, clocks)
            if streamed:
                answer = await self._collect(run, response, clocks)
            else:
                data = await response.read(MAX_ANSWER_BYTES)
                if operation.route == "embeddings":
                    body, run.usage = rebuild_embeddings(
                        data, model=model.id, inputs=operation.inputs
                    )
                    return body
                answer = decode_answer(data)
                run.usage = answer_usage(answer)
        finally:
            clocks.stop()
            if response is not None:
                response.close()
        if operation.alternatives is not None:
            keep_alternatives(answer, operation.alternatives)
        return rebuild_answer(
            operation.shape,
            answer,
            run.usage,
            answer_id=run.answer_id,
            created=run.created,
            model=model.id,
            choices=operation.choices,
        )

    @staticmethod
    async def _collect(run: Run, response: Response, clocks: AttemptClocks) -> Answer:
        """A whole answer from an upstream's stream; counts tokens as they come."""
        collector = AnswerCollector(run.operation.shape, run.operation.choices)
        try:
            reader = EventStream(response)
            while events := await reader.next():
                for event in events:
                    collector.feed(event)
                if collector.committed:
                    clocks.progress()
                if collector.finished:
                    clocks.finished()
        except UpstreamFailure:
            if not collector.finished:
                raise
        finally:
            run.usage = collector.usage
        return collector.answer()

    async def _open(
        self, run: Run, model: Model, upstream: Upstream, clocks: AttemptClocks
    ) -> Response:
        """Send the request and return an answer of status 200. Raises ApiError."""
        operation = run.operation
        headers = b"x-request-id: %b\r\n" % run.id.encode()
        if operation.session and upstream.deployment.engine == "dynamo":
            headers += _dynamo_session(run.key.tenant, operation.session)
        response = await upstream.pool.fetch(
            "POST",
            f"/{operation.route}",
            operation.body(upstream.deployment),
            headers=headers,
            connect_seconds=self._clocks.connect,
            watch=clocks.watch,
        )
        if response.status == 200:
            return response
        try:
            body = await response.read(MAX_ERROR_BYTES)
        except UpstreamMalformed:  # an error page larger than any error of an API
            body = b""
        finally:
            response.close()
        raise upstream_error(
            response.status, body, response.header(b"retry-after"), model.context_tokens
        )


def _dynamo_session(tenant: str, session: str) -> bytes:
    """Keeps a conversation on one decode worker. A digest: no text of the client's goes upstream,
    and tenants who chose the same name share nothing."""
    return b"x-dynamo-session-id: %016x\r\n" % session_key(tenant, session)
