"""One try of a request on one deployment."""

from __future__ import annotations

from functools import partial

from prime_inference.domain.errors import (
    ContextLengthExceeded,
    ToolCallBroken,
    UpstreamCut,
    UpstreamFailure,
    UpstreamMalformed,
    UpstreamRefused,
    UpstreamTimeout,
)
from prime_inference.domain.models import Model
from prime_inference.gateway import continuation
from prime_inference.gateway.billing import charging
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines
from prime_inference.gateway.evacuation import Stay
from prime_inference.gateway.hedging import Hedge, Rival
from prime_inference.gateway.prompt_tokens import PromptTokens
from prime_inference.gateway.relay import StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import session_header
from prime_inference.gateway.toolcalls.answer import AnswerTools
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstream_errors import MAX_ERROR_BYTES, upstream_error
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.outcome import outcome_of
from prime_inference.reliability.slots import Slot
from prime_inference.wire.event_stream import EventStream
from prime_inference.wire.http_client import Response
from prime_inference.wire.openai.answers import Answer, decode_answer, whole_usage
from prime_inference.wire.openai.calls import CallRules
from prime_inference.wire.openai.collect import AnswerCollector
from prime_inference.wire.openai.embeddings import rebuild_embeddings
from prime_inference.wire.openai.estimate import estimated_tokens
from prime_inference.wire.openai.logprobs import keep_alternatives
from prime_inference.wire.openai.said import Said
from prime_inference.wire.openai.stream import AnswerStream
from prime_inference.wire.openai.whole import rebuild_answer

MAX_ANSWER_BYTES = 64 * 1024 * 1024  # 2,048 embeddings of 1,024 floats are half of it


class Attempts:
    """Makes attempts; each has connections, clocks and parsing state of its own."""

    def __init__(self, clocks: ClockLimits, deadlines: Deadlines, tool_calls: ToolCalls) -> None:
        self._clocks = clocks
        self._deadlines = deadlines
        self._prompts = PromptTokens(clocks)
        self._tool_calls = tool_calls

    async def stream(
        self,
        run: Run,
        model: Model,
        relay: StreamRelay,
        keep_record: bool,
        upstream: Upstream,
        slot: Slot,
        stay: Stay[None] | None,
    ) -> None:
        """One attempt at a stream; after the commit point it goes on with what was sent.

        `keep_record`: another deployment may have to go on with this answer.
        """
        since = run.started if relay.committed else None  # one answer, one total
        hedge = None if stay is None else stay.hedge
        late = None if hedge is None else (hedge.after, hedge.late)
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=True, since=since, late=late)
        slot.when_recalled(clocks.recalled)
        if stay is not None:
            stay.clocks, stay.relay = clocks, relay
        response: Response | None = None
        relay.brought_content = False
        tools = run.operation.answer_tools(upstream.deployment)
        try:
            if relay.committed:
                response = await self._take_up(run, model, relay, upstream, slot, clocks)
            else:
                body, said, rules = await self._first_request(run, keep_record, upstream, tools)
                came = slot.first_token if hedge is None else partial(_came, hedge, slot)
                relay.begin(came, relay.new_stream(said, rules))
                path = f"/{run.operation.route}"
                response = await self._open(run, model, upstream, clocks, path, body)
            await relay.relay(EventStream(response), clocks)
            if tools is not None:
                self._tool_calls.answered(tools, relay.calls, run.key.tenant)
        except UpstreamFailure as failure:
            self._mend(run, relay, upstream, slot, failure, tools)
        finally:
            self._ended(run, relay, response, clocks)

    async def contend(
        self,
        run: Run,
        model: Model,
        relay: StreamRelay,
        keep_record: bool,
        upstream: Upstream,
        slot: Slot,
    ) -> Rival[None]:
        """A second attempt at a stream, as far as its first content."""
        clocks = AttemptClocks(self._deadlines, self._clocks, streamed=True)
        slot.when_recalled(clocks.recalled)
        response: Response | None = None
        try:
            tools = run.operation.answer_tools(upstream.deployment)
            body, said, rules = await self._first_request(run, keep_record, upstream, tools)
            response = await self._open(
                run, model, upstream, clocks, f"/{run.operation.route}", body
            )
            reader = EventStream(response)
            events = await _first_content(reader, relay.new_stream(None, rules))
        except BaseException:
            clocks.stop()
            if response is not None:
                response.close()
            raise

        async def go_on(stay: Stay[None] | None) -> None:
            if stay is not None:
                stay.clocks, stay.relay = clocks, relay
            relay.begin(slot.first_token, relay.new_stream(said, rules))
            relay.brought_content = False
            try:
                await relay.relay(reader, clocks, events)
                if tools is not None:
                    self._tool_calls.answered(tools, relay.calls, run.key.tenant)
            except UpstreamFailure as failure:
                self._mend(run, relay, upstream, slot, failure, tools)
            finally:
                self._ended(run, relay, response, clocks)

        def abandon() -> None:
            clocks.stop()
            response.close()

        return Rival(go_on, abandon)

    def _mend(
        self,
        run: Run,
        relay: StreamRelay,
        upstream: Upstream,
        slot: Slot,
        failure: UpstreamFailure,
        tools: AnswerTools | None,
    ) -> None:
        """End an answer of which only the word of its end is missing. Raises `failure` if not."""
        if tools is not None and isinstance(failure, ToolCallBroken):
            self._tool_calls.answered(tools, relay.calls, run.key.tenant)
        if not self._is_long_enough(run, relay, upstream):
            if relay.committed:
                self._judge(run, relay, failure)
            raise failure
        slot.record(outcome_of(failure, failure.upstream_status))
        relay.cut_short()

    @staticmethod
    def _ended(
        run: Run, relay: StreamRelay, response: Response | None, clocks: AttemptClocks
    ) -> None:
        clocks.stop()
        run.usage = relay.usage
        if relay.brought_content:
            run.pieces += 1
        if relay.committed:
            run.committed = True
            run.first_token = relay.first_content_at - run.started
        if response is not None:
            response.release() if relay.complete else response.close()

    async def _first_request(
        self, run: Run, keep_record: bool, upstream: Upstream, tools: AnswerTools | None
    ) -> tuple[bytes, Said | None, CallRules]:
        """The body, the record of the answer if one is kept, and how tool calls are found."""
        rules = run.operation.call_rules if tools is None else tools.rules
        if keep_record and rules.new_reader is None:  # what a parser holds back cannot go on
            return *continuation.begin(run.operation, upstream.deployment), rules
        return await self._body(run, upstream), None, rules

    async def _take_up(
        self,
        run: Run,
        model: Model,
        relay: StreamRelay,
        upstream: Upstream,
        slot: Slot,
        clocks: AttemptClocks,
    ) -> Response:
        """Have this deployment go on with the answer. Raises UpstreamFailure."""
        operation, said, deployment = run.operation, relay.said, upstream.deployment
        assert said is not None
        how = continuation.resumption_of(deployment)
        if how.tokenizes:
            ids = await self._prompts.ids(upstream, operation, said, clocks)
        else:
            ids = continuation.ids_of(operation, said)
        for piece in continuation.pieces(operation, model, deployment, said, ids):
            try:
                response = await self._open(run, model, upstream, clocks, piece.path, piece.body)
            except (UpstreamRefused, ContextLengthExceeded):
                continue  # a fault of the continuation, not of the client's request
            said.taken_up(
                how.id_source if piece.by_ids else None,
                withheld=continuation.withholds(operation, how),
                again=piece.again,
            )
            relay.resume(slot.first_token, said, operation.stops)
            return response
        raise UpstreamRefused("The model's engine cannot go on with this answer.")

    @staticmethod
    def _judge(run: Run, relay: StreamRelay, failure: UpstreamFailure) -> None:
        """Note whether another engine can go on; the client is told why, if none can."""
        obstacle = continuation.obstacle(run.operation, relay.said)
        if isinstance(failure, UpstreamTimeout) and failure.clock == "total":
            obstacle = "total"
        run.resumable = obstacle is None
        if obstacle is not None:
            failure.details["not_continued"] = obstacle

    @staticmethod
    def _is_long_enough(run: Run, relay: StreamRelay, upstream: Upstream) -> bool:
        """Whether all that is missing of the answer is word of its end."""
        said = relay.said
        if said is None or not relay.committed:
            return False
        if continuation.obstacle(run.operation, said) is not None:
            return False
        left = continuation.tokens_left(run.operation, upstream.deployment, said)
        return left is not None and left <= 0

    async def contend_whole(
        self, run: Run, model: Model, upstream: Upstream, slot: Slot
    ) -> Rival[bytes]:
        """A second attempt at a whole answer, to its end."""
        body = await self.whole(run, model, upstream, slot, None)
        usage = run.usage

        async def go_on(stay: Stay[bytes] | None) -> bytes:
            run.usage = usage
            return body

        return Rival(go_on, _nothing)

    async def whole(
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
            body = await self._body(run, upstream)
            response = await self._open(run, model, upstream, clocks, f"/{operation.route}", body)
            if operation.route == "embeddings":
                data = await response.read(MAX_ANSWER_BYTES)
                body, run.usage = rebuild_embeddings(
                    data,
                    model=model.id,
                    inputs=operation.inputs,
                    unreported=partial(estimated_tokens, operation.content),
                    charge=charging(run, self._deadlines.now),
                )
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
            charge=charging(run, self._deadlines.now),
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
        except UpstreamFailure:
            if not collector.finished:
                raise
        finally:
            run.usage = collector.usage

    async def _body(self, run: Run, upstream: Upstream) -> bytes:
        """The request that this deployment is sent, its tools made ready."""
        operation = run.operation
        if operation.tools is not None:
            await self._tool_calls.prepare(operation.tools, upstream.deployment)
        return operation.body(upstream.deployment)

    async def _open(
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
            connect_seconds=self._clocks.connect,
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


def _collector(run: Run, tools: AnswerTools | None) -> AnswerCollector:
    operation = run.operation
    return AnswerCollector(
        operation.shape,
        operation.choices,
        answer_id=run.answer_id,
        rules=operation.call_rules if tools is None else tools.rules,
    )


async def _first_content(reader: EventStream, stream: AnswerStream) -> list[bytes]:
    """Events up to the first that brings content or ends the answer. Raises UpstreamFailure."""
    events: list[bytes] = []
    while more := await reader.next():
        events += more
        for event in more:
            stream.feed(event)
        if stream.committed or stream.finished:
            return events
    raise UpstreamCut("The model's answer ended early.")


def _came(hedge: Hedge[None], slot: Slot) -> None:
    hedge.call_off()
    slot.first_token()


def _nothing() -> None:
    """A whole answer holds no connection."""
