"""The requests that attempts send: what a deployment is asked, and its answer's head."""

from __future__ import annotations

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.domain.models import Model
from prime_inference.gateway.clocks import AttemptClocks
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import session_header
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstream_errors import MAX_ERROR_BYTES, upstream_error
from prime_inference.gateway.upstreams import Upstream
from prime_inference.wire.http_client import Response


class UpstreamRequests:
    """Prepares and sends them."""

    def __init__(self, connect_seconds: float, tool_calls: ToolCalls) -> None:
        self._connect_seconds = connect_seconds
        self._tool_calls = tool_calls

    async def body(self, run: Run, upstream: Upstream) -> bytes:
        """The request that this deployment is sent, its tools made ready."""
        operation = run.operation
        if operation.tools is not None:
            await self._tool_calls.prepare(operation.tools, upstream.deployment)
        return operation.body(upstream.deployment)

    async def send(
        self,
        run: Run,
        model: Model,
        upstream: Upstream,
        clocks: AttemptClocks,
        path: str,
        body: bytes,
    ) -> Response:
        """Send the request and return an answer of status 200. Raises ApiError."""
        response = await upstream.pool.fetch(
            "POST",
            path,
            body,
            headers=b"x-request-id: %b\r\n%b"
            % (run.id.encode(), session_header(run.session) if run.operation.session else b""),
            connect_seconds=self._connect_seconds,
            watch=clocks.watch,
        )
        if response.status == 200:
            return response
        try:
            error = await response.read(MAX_ERROR_BYTES)
        except UpstreamMalformed:  # an error page larger than any error of an API
            error = b""
        finally:
            response.close()
        raise upstream_error(
            response.status, error, response.header(b"retry-after"), model.context_tokens
        )
