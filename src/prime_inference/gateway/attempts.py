"""One try of a request on one deployment."""

from __future__ import annotations

from prime_inference.domain.errors import UpstreamFailure, UpstreamMalformed
from prime_inference.domain.models import Model
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines
from prime_inference.gateway.relay import StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.toolcalls.answer import AnswerTools
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstream_errors import MAX_ERROR_BYTES, upstream_error
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.slots import Slot
from prime_inference.wire.event_stream import EventStream
from prime_inference.wire.http_client import Response
from prime_inference.wire.openai.answers import Answer, answer_usage, decode_answer
from prime_inference.wire.openai.calls import ANY_CALLS
from prime_inference.wire.openai.collect import AnswerCollector
from prime_inference.wire.openai.embeddings import rebuild_embeddings
from prime_inference.wire.openai.logprobs import keep_alternatives
from prime_inference.wire.openai.whole import rebuild_answer

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # 2,048 embeddings of 1,024 floats are half of it


class Attempts:
    """Makes attempts; each has connections, clocks and parsing state of its own."""

    def __init__(self, clocks: ClockLimits, deadlines: Deadlines, tool_calls: ToolCalls) -> None:
        self._clocks = clocks
        self._deadlines = deadlines
        self._tool_calls = tool_calls

    async def stream(
        self, run: Run, model: Model, relay: StreamRelay, upstream: Upstream, slot: Slot
    ) -> None:
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=True)
        response: Response | None = None
        tools = run.operation.answer_tools(upstream.deployment)
        stream = relay.begin(slot.first_token, ANY_CALLS if tools is None else tools.rules)
        try:
            response = await self._open(run, model, upstream, clocks)
            await relay.relay(response, clocks)
            if tools is not None:
                self._tool_calls.answered(tools, stream.calls)
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
            if operation.route == "embeddings":
                data = await response.read(MAX_ANSWER_BYTES)
                body, run.usage = rebuild_embeddings(data, model=model.id, inputs=operation.inputs)
                return body
            tools = operation.answer_tools(upstream.deployment)
            answer = await self._answer(run, tools, response, clocks if streamed else None)
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

    async def _answer(
        self,
        run: Run,
        tools: AnswerTools | None,
        response: Response,
        stream_clocks: AttemptClocks | None,
    ) -> Answer:
        """A whole answer, put together where it comes as a stream or has calls to look after."""
        if stream_clocks is not None:
            collector = _collector(run, tools)
            await self._collect(run, collector, response, stream_clocks)
        else:
            answer = decode_answer(await response.read(MAX_ANSWER_BYTES))
            run.usage = answer_usage(answer)
            if tools is None:
                return answer
            collector = _collector(run, tools)
            collector.take_whole(answer)
        answer = collector.answer()
        if tools is not None:
            self._tool_calls.answered(tools, collector.calls)
        return answer

    @staticmethod
    async def _collect(
        run: Run, collector: AnswerCollector, response: Response, clocks: AttemptClocks
    ) -> None:
        """Take an upstream's stream; counts tokens as they come."""
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

    async def _open(
        self, run: Run, model: Model, upstream: Upstream, clocks: AttemptClocks
    ) -> Response:
        """Send the request and return an answer of status 200. Raises ApiError."""
        operation = run.operation
        if operation.tools is not None:
            await self._tool_calls.prepare(operation.tools, upstream.deployment)
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


def _collector(run: Run, tools: AnswerTools | None) -> AnswerCollector:
    operation = run.operation
    return AnswerCollector(
        operation.shape,
        operation.choices,
        answer_id=run.answer_id,
        rules=ANY_CALLS if tools is None else tools.rules,
    )
