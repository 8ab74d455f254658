"""A stream on its way from an upstream to a client.

Nothing is sent before the first content, so that until then another deployment may take
over unseen; the exception is a comment that keeps a quiet connection open, which commits
the status line but no content.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from prime_inference.domain.errors import ApiError, UpstreamFailure
from prime_inference.domain.usage import Usage
from prime_inference.gateway.clocks import AttemptClocks, Deadlines, Watchdog
from prime_inference.gateway.operations import Operation
from prime_inference.wire.event_stream import EventStream
from prime_inference.wire.http import HeaderLines, Reply, header_lines
from prime_inference.wire.openai.calls import ANY_CALLS, CallRules, ChoiceCalls
from prime_inference.wire.openai.continued import ContinuedStream
from prime_inference.wire.openai.errors import error_object
from prime_inference.wire.openai.said import Said
from prime_inference.wire.openai.stream import AnswerStream, Charge

STREAM_HEADERS = header_lines(
    [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),  # tells nginx in front of us not to hold events back
    ]
)
KEEP_ALIVE = b": keep-alive\n\n"
OVER_LIMIT = 8  # events with content beyond the limit of tokens: the engine does not heed it


class StreamRelay:
    """Relays one client's stream, over as many attempts as it takes."""

    def __init__(
        self,
        operation: Operation,
        reply: Reply,
        *,
        answer_id: str,
        created: int,
        headers: Callable[[], HeaderLines],
        deadlines: Deadlines,
        keep_alive_seconds: float,
        charge: Charge | None = None,
    ) -> None:
        self._charge = charge
        self._operation = operation
        self._reply = reply
        self._answer_id = answer_id
        self._created = created
        self._headers = headers
        self._deadlines = deadlines
        self._keep_alive_seconds = keep_alive_seconds
        limit = operation.token_limit
        self._most_events = math.inf if limit is None else limit * operation.choices + OVER_LIMIT
        self._quiet = Watchdog(deadlines, keep_alive_seconds, self._keep_alive)
        self._stream = self.new_stream()
        self._first_token = _nobody
        self.first_content_at = 0.0  # event loop clock
        self.brought_content = False  # in the present attempt
        self.complete = False

    @property
    def committed(self) -> bool:
        """Whether content has reached the client, so that no attempt may start over."""
        return self.first_content_at > 0

    @property
    def usage(self) -> Usage:
        """Tokens so far, over all attempts that the answer is made of."""
        return self._stream.usage

    @property
    def said(self) -> Said | None:
        """What the client has been sent, if a record is kept."""
        return self._stream.said

    @property
    def calls(self) -> list[ChoiceCalls]:
        """What became of the tool calls of each choice, once the answer has finished."""
        return self._stream.calls

    def begin(self, first_token: Callable[[], None], stream: AnswerStream) -> None:
        """Start a new attempt's stream; `first_token` is called when its first content comes."""
        self._first_token = first_token
        self._stream = stream

    def new_stream(self, said: Said | None = None, rules: CallRules = ANY_CALLS) -> AnswerStream:
        """The stream of one attempt: `said` is kept of it, `rules` find its tool calls."""
        stream = AnswerStream(
            self._operation.shape,
            answer_id=self._answer_id,
            created=self._created,
            model=self._operation.model,
            include_usage=self._operation.include_usage,
            choices=self._operation.choices,
            service_tier=self._operation.service_tier,
            charge=self._charge,
            alternatives=self._operation.alternatives,
            rules=rules,
        )
        stream.said = said
        return stream

    def resume(self, first_token: Callable[[], None], said: Said, stops: Sequence[str]) -> None:
        """Another engine goes on with the answer of which `said` is the record."""
        self._first_token = first_token
        self._stream = ContinuedStream(self._stream, said, stops)

    def cut_short(self) -> None:
        """End the answer where it is: it has as many tokens as were asked for."""
        self._write(self._stream.finish("length"))
        self._reply.end()
        self.complete = True

    async def relay(
        self, reader: EventStream, clocks: AttemptClocks, events: Sequence[bytes] = ()
    ) -> None:
        """Relay one attempt to its end. Raises UpstreamFailure if it ends early.

        `events` have been read already.
        """
        try:
            while events := events or await reader.next():
                self._forward(events, clocks)
                events = ()
                if self._stream.ended:
                    break
                if self._stream.content_events > self._most_events:
                    self.cut_short()
                    return
                if self._reply.congested:
                    clocks.hold()
                    await self._reply.drained()
                    clocks.resume()
        except UpstreamFailure as failure:
            # with every finish reason here, a missing `[DONE]` costs the client nothing
            if not self._stream.finished:
                raise
            failure.dealt_with()
        self._write(self._stream.finish())
        if self._stream.committed:  # a parser may have held everything back until now
            self._begun()
        self._reply.end()
        self.complete = True

    def fail(self, error: ApiError) -> None:
        """End a stream that has begun with an in-band error."""
        if self._reply.started:
            self._write(self._stream.error_event(error_object(error)))
            self._reply.end()

    def stop(self) -> None:
        self._quiet.cancel()

    def _forward(self, events: Sequence[bytes], clocks: AttemptClocks) -> None:
        stream = self._stream
        pieces = []
        before = stream.content_events
        try:
            for event in events:
                if piece := stream.feed(event):
                    pieces.append(piece)
        finally:  # what came before a broken event is the client's
            if stream.content_events != before:  # what a parser holds back is progress as well
                clocks.progress()
            if pieces:
                self._write(b"".join(pieces))
                self._begun()
            if stream.finished:
                clocks.finished()

    def _begun(self) -> None:
        """Content of the present attempt has been sent."""
        if not self.brought_content:
            self.brought_content = True
            self.first_content_at = self.first_content_at or self._deadlines.now()
            self._first_token()

    def _write(self, data: bytes) -> None:
        if not self._reply.started:
            self._reply.start(200, self._headers())
        self._reply.write(data)
        self._quiet.touch()

    def _keep_alive(self) -> None:
        self._write(KEEP_ALIVE)
        self._quiet.restart(self._keep_alive_seconds)


def _nobody() -> None:
    """No attempt has begun."""
