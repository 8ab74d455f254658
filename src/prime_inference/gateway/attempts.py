"""One try of a request on one deployment."""

from __future__ import annotations

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.domain.models import Model
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines
from prime_inference.gateway.relay import StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.upstream_errors import MAX_ERROR_BYTES, upstream_error
from prime_inference.gateway.upstreams import Upstream
from prime_inference.wire.http_client import Response
from prime_inference.wire.openai.embeddings import rebuild_embeddings
from prime_inference.wire.openai.whole import rebuild_answer

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # 2,048 embeddings of 1,024 floats are half of it


class Attempts:
    """Makes attempts; each has connections, clocks and parsing state of its own."""

    def __init__(self, clocks: ClockLimits, deadlines: Deadlines) -> None:
        self._clocks = clocks
        self._deadlines = deadlines

    async def stream(self, run: Run, model: Model, upstream: Upstream, relay: StreamRelay) -> None:
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=True)
        response: Response | None = None
        stream = relay.begin()
        try:
            response = await self._open(run, model, upstream, clocks)
            content_type = response.header(b"content-type") or b""
            if not content_type.startswith(b"text/event-stream"):
                raise UpstreamMalformed("The upstream's answer is not an event stream.")
            await relay.relay(response, clocks)
        finally:
            clocks.stop()
            run.usage = stream.usage
            if relay.committed:
                run.committed = True
                run.first_token = relay.first_content_at - run.started
            if response is not None:
                response.release() if relay.complete else response.close()

    async def whole(self, run: Run, model: Model, upstream: Upstream) -> bytes:
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=False)
        response: Response | None = None
        try:
            response = await self._open(run, model, upstream, clocks)
            data = await response.read(MAX_ANSWER_BYTES)
        finally:
            clocks.stop()
            if response is not None:
                response.close()
        operation = run.operation
        if operation.route == "embeddings":
            body, run.usage = rebuild_embeddings(data, model=model.id, inputs=operation.inputs)
        else:
            body, run.usage = rebuild_answer(
                operation.shape,
                data,
                answer_id=run.answer_id,
                created=run.created,
                model=model.id,
                choices=operation.choices,
            )
        return body

    async def _open(
        self, run: Run, model: Model, upstream: Upstream, clocks: AttemptClocks
    ) -> Response:
        """Send the request and return an answer of status 200. Raises ApiError."""
        operation = run.operation
        response = await upstream.pool.fetch(
            "POST",
            f"/{operation.route}",
            operation.body(upstream.deployment),
            headers=b"x-request-id: %b\r\n" % run.id.encode(),
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
