"""One try of a whole answer on one deployment."""

from __future__ import annotations

from functools import partial

from prime_inference.domain.errors import AnswerTooLarge, BodyTooLarge, UpstreamFailure
from prime_inference.domain.models import Model
from prime_inference.gateway.billing import charging
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines
from prime_inference.gateway.evacuation import Stay
from prime_inference.gateway.hedging import Rival
from prime_inference.gateway.operations import Operation
from prime_inference.gateway.run import Run
from prime_inference.gateway.toolcalls.answer import AnswerTools
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstream_requests import UpstreamRequests
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.slots import Slot
from prime_inference.wire.event_stream import EventStream
from prime_inference.wire.http_client import Response
from prime_inference.wire.openai.answers import Answer, decode_answer, whole_usage
from prime_inference.wire.openai.collect import AnswerCollector
from prime_inference.wire.openai.embeddings import rebuild_embeddings
from prime_inference.wire.openai.estimate import estimated_tokens
from prime_inference.wire.openai.logprobs import keep_alternatives
from prime_inference.wire.openai.whole import rebuild_answer

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # 2,048 embeddings of 1,024 floats are half of it
TOKEN_BYTES = 64  # of text, escaped
LOGPROB_BYTES = 200  # of a token with its bytes, or of one alternative to it
EMBEDDING_BYTES = 8192 * 24


class WholeAttempts:
    """Makes attempts at whole answers, which some engines are asked for as streams."""

    def __init__(self, clocks: ClockLimits, deadlines: Deadlines, tool_calls: ToolCalls) -> None:
        self._clocks = clocks
        self._deadlines = deadlines
        self._tool_calls = tool_calls
        self._requests = UpstreamRequests(clocks.connect, tool_calls)

    async def contend(self, run: Run, model: Model, upstream: Upstream, slot: Slot) -> Rival[bytes]:
        """A second attempt at a whole answer, to its end."""
        body = await self.attempt(run, model, upstream, slot, None)
        usage = run.usage

        async def go_on(stay: Stay[bytes] | None) -> bytes:
            run.usage = usage
            return body

        return Rival(go_on, _nothing)

    async def attempt(
        self,
        run: Run,
        model: Model,
        upstream: Upstream,
        slot: Slot,
        stay: Stay[bytes] | None,
    ) -> bytes:
        """The client's body. Raises ApiError."""
        operation = run.operation
        streamed = operation.streams_from(upstream.deployment)
        hedge = None if stay is None else stay.hedge
        late = None if hedge is None else (hedge.after, hedge.late)
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=streamed, late=late)
        slot.when_recalled(clocks.recalled)
        if stay is not None:
            stay.clocks = clocks
        response: Response | None = None
        try:
            body = await self._requests.body(run, upstream)
            response = await self._requests.send(
                run, model, upstream, clocks, f"/{operation.route}", body
            )
            if operation.route == "embeddings":
                data = await _read(response, operation, model)
                body, run.usage = rebuild_embeddings(
                    data,
                    model=model.id,
                    inputs=operation.inputs,
                    unreported=partial(estimated_tokens, operation.content),
                    charge=charging(run, self._deadlines.now),
                )
                return body
            tools = operation.answer_tools(upstream.deployment)
            answer = await self._answer(run, model, tools, response, clocks if streamed else None)
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
            service_tier=operation.service_tier,
            charge=charging(run, self._deadlines.now),
        )

    async def _answer(
        self,
        run: Run,
        model: Model,
        tools: AnswerTools | None,
        response: Response,
        stream_clocks: AttemptClocks | None,
    ) -> Answer:
        """A whole answer, put together where it comes as a stream or has calls to look after."""
        if stream_clocks is not None:
            collector = _collector(run, tools)
            await self._collect(run, collector, response, stream_clocks)
        else:
            answer = decode_answer(await _read(response, run.operation, model))
            run.usage = whole_usage(answer)
            if tools is None and not run.operation.call_rules.objects:
                return answer
            collector = _collector(run, tools)
            collector.take_whole(answer)
        try:
            return collector.answer()
        finally:
            if tools is not None and collector.finished:
                self._tool_calls.answered(tools, collector.calls, run.key.tenant)

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
        except UpstreamFailure as failure:
            if not collector.finished:
                raise
            failure.dealt_with()
        finally:
            run.usage = collector.usage


def _collector(run: Run, tools: AnswerTools | None) -> AnswerCollector:
    operation = run.operation
    return AnswerCollector(
        operation.shape,
        operation.choices,
        answer_id=run.answer_id,
        rules=operation.call_rules if tools is None else tools.rules,
    )


async def _read(response: Response, operation: Operation, model: Model) -> bytes:
    """The body of a whole answer. Raises UpstreamFailure, AnswerTooLarge."""
    try:
        return await response.read(MAX_ANSWER_BYTES)
    except BodyTooLarge:
        if _largest(operation, model) < MAX_ANSWER_BYTES:
            raise  # nobody had asked for that much
        raise AnswerTooLarge(
            f"The answer is larger than {MAX_ANSWER_BYTES >> 20} MiB. Ask for fewer tokens,"
            " choices, logprobs or inputs at a time, or for a stream."
        ) from None


def _largest(operation: Operation, model: Model) -> int:
    """Bytes of the largest answer that does what was asked."""
    if operation.route == "embeddings":
        return operation.inputs * EMBEDDING_BYTES
    parameters, of_token = operation.parameters, TOKEN_BYTES
    if parameters.get("logprobs"):  # a number of alternatives, or that they are another's
        alternatives = int(parameters.get("top_logprobs") or parameters["logprobs"])
        of_token += LOGPROB_BYTES * (1 + alternatives)
    return operation.choices * (operation.token_limit or model.context_tokens) * of_token


def _nothing() -> None:
    """A whole answer holds no connection."""
