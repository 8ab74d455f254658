"""One try of a streamed answer on one deployment."""

from __future__ import annotations

from functools import partial

from prime_inference.domain.errors import (
    ContextLengthExceeded,
    ToolCallBroken,
    UpstreamCut,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeout,
)
from prime_inference.domain.models import Model
from prime_inference.gateway import continuation
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits, Deadlines
from prime_inference.gateway.evacuation import Stay
from prime_inference.gateway.hedging import Hedge, Rival
from prime_inference.gateway.prompt_tokens import PromptTokens
from prime_inference.gateway.relay import StreamRelay
from prime_inference.gateway.run import Run
from prime_inference.gateway.toolcalls.answer import AnswerTools
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstream_requests import UpstreamRequests
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.outcome import outcome_of
from prime_inference.reliability.slots import Slot
from prime_inference.wire.event_stream import EventStream
from prime_inference.wire.http_client import Response
from prime_inference.wire.openai.calls import CallRules
from prime_inference.wire.openai.said import Said
from prime_inference.wire.openai.stream import AnswerStream


class StreamAttempts:
    """Makes attempts at streams; each has connections, clocks and parsing state of its own."""

    def __init__(self, clocks: ClockLimits, deadlines: Deadlines, tool_calls: ToolCalls) -> None:
        self._clocks = clocks
        self._deadlines = deadlines
        self._prompts = PromptTokens(clocks)
        self._tool_calls = tool_calls
        self._requests = UpstreamRequests(clocks.connect, tool_calls)

    async def attempt(
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
                run.revision = upstream.revision
                body, said, rules = await self._first_request(run, keep_record, upstream, tools)
                came = slot.first_token if hedge is None else partial(_came, hedge, slot)
                relay.begin(came, relay.new_stream(said, rules))
                path = f"/{run.operation.route}"
                response = await self._requests.send(run, model, upstream, clocks, path, body)
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
        revision = upstream.revision
        try:
            tools = run.operation.answer_tools(upstream.deployment)
            body, said, rules = await self._first_request(run, keep_record, upstream, tools)
            response = await self._requests.send(
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
            run.revision = revision
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
        failure.dealt_with()
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
        return await self._requests.body(run, upstream), None, rules

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
                response = await self._requests.send(
                    run, model, upstream, clocks, piece.path, piece.body
                )
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
