"""The events of an upstream's answer."""

from __future__ import annotations

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.http_client import Response
from prime_inference.wire.sse import DONE, SseFramer, event_data


class EventStream:
    """Reads events until `[DONE]` or the end of the body.

    Raises UpstreamMalformed for an answer that is no event stream.
    """

    def __init__(self, response: Response) -> None:
        content_type = response.header(b"content-type") or b""
        if not content_type.lower().startswith(b"text/event-stream"):
            raise UpstreamMalformed("The upstream's answer is not an event stream.")
        self._response = response
        self._framer = SseFramer()
        self._done = False

    async def next(self) -> list[bytes]:
        """Data of the events that have come; none at the end. Raises UpstreamFailure."""
        while not self._done:
            chunk = await self._response.chunk()
            if chunk:
                events = self._framer.feed(chunk)
            else:
                tail = event_data(self._framer.end())  # the end of the body completes it
                events = [] if tail is None else [tail]
                self._done = True
            if DONE in events:
                self._done = True
                events = events[: events.index(DONE)]
            if events:
                return events
        return []
