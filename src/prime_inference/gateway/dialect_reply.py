"""A reply that speaks another dialect than the chat completions that are written to it.

The chat path stays one: admission, attempts, failover and accounting know nothing of
dialects. What they write, events or a whole answer, is read here and written anew.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from prime_inference.wire.http import Fields, HeaderLines, Reply, header_lines
from prime_inference.wire.openai.answers import Answer, decode_answer
from prime_inference.wire.openai.errors import ErrorObject, decode_error
from prime_inference.wire.sse import DONE, MAX_EVENT_BYTES, SseFramer


class Translation(Protocol):
    """Chat answers, streamed or whole, in another dialect; pure."""

    @property
    def document(self) -> dict[str, Any]:
        """The whole answer; valid after `finish`."""
        ...

    def feed(self, answer: Answer) -> bytes: ...

    def finish(self) -> bytes:
        """Close what is open. Raises UpstreamFailure if that is no whole answer."""
        ...

    def last(self) -> bytes:
        """What ends a whole answer."""
        ...

    def fail(self, error: ErrorObject) -> bytes: ...


class DialectReply:
    """Implements `wire.http.Reply` in front of the client's.

    The end of an answer is held back until `complete`, so that what an answer promises
    (that it is stored) can be done before the client hears of it.
    """

    def __init__(self, reply: Reply, translation: Translation, headers: HeaderLines) -> None:
        self._reply = reply
        self._translation = translation
        self._headers = headers  # of the dialect, beside those of the answer
        self._framer = SseFramer(2 * MAX_EVENT_BYTES)  # an upstream's largest, under our head
        self._head: tuple[int, HeaderLines] | None = None  # of a whole answer
        self.whole = False  # the answer came to its proper end

    @property
    def started(self) -> bool:
        return self._reply.started

    def send(self, status: int, headers: Fields, body: bytes) -> None:
        self._translation.feed(decode_answer(body))
        self._translation.finish()
        self._head = status, self._with_own(headers)
        self.whole = True

    def start(self, status: int, headers: Fields) -> None:
        self._reply.start(status, self._with_own(headers))

    def write(self, data: bytes) -> None:
        if data.startswith(b":"):  # keeps the connection open, in every dialect
            self._reply.write(data)
            return
        pieces = []
        try:
            for event in self._framer.feed(data):
                pieces.append(self._event(event))
        finally:  # what came before a broken end is the client's
            if translated := b"".join(pieces):
                self._reply.write(translated)

    def end(self) -> None:
        if not self.whole:  # after an in-band error
            self._reply.end()

    def complete(self) -> None:
        """Write what was held back."""
        if not self.whole:
            return
        if self._head is None:
            self._reply.write(self._translation.last())
            self._reply.end()
        else:
            self._reply.send(*self._head, msgspec.json.encode(self._translation.document))

    def abort(self) -> None:
        self._reply.abort()

    @property
    def server_stops(self) -> bool:
        return self._reply.server_stops

    @property
    def congested(self) -> bool:
        return self._reply.congested

    async def drained(self) -> None:
        await self._reply.drained()

    def _event(self, event: bytes) -> bytes:
        if event == DONE:
            closing = self._translation.finish()
            self.whole = True
            return closing
        answer = decode_answer(event)
        if answer.failed:
            return self._translation.fail(decode_error(answer.error))
        return self._translation.feed(answer)

    def _with_own(self, headers: Fields) -> HeaderLines:
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        return HeaderLines(lines + self._headers)
