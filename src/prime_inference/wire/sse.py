"""Server-sent events, framed on bytes (WHATWG HTML, section 9.2.6, "event stream interpretation").

Lines end in LF, CRLF or CR; a chunk may be split anywhere, inside a line ending or a
UTF-8 sequence included. Only the `data` field matters to the APIs spoken here; comments
and other fields are read and dropped.
"""

from __future__ import annotations

from prime_inference.domain.errors import UpstreamMalformed

MAX_EVENT_BYTES = 1024 * 1024  # the largest token event with 20 top logprobs is about 4 KB

DONE = b"[DONE]"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseFramer:
    """Turns chunks of bytes into the data of whole events.

    The events do not depend on where the chunks are cut. One that is larger than
    `max_event` bytes raises UpstreamMalformed, once those before it have been handed over.
    """

    def __init__(self, max_event: int = MAX_EVENT_BYTES) -> None:
        self._parts: list[bytes] = []  # of the event not yet complete; joined once, when it is
        self._size = 0
        self._ends_line = False
        self._skip_lf = False
        self._at_start = True
        self._oversize = False
        self._max_event = max_event

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that `chunk` completes, in order."""
        if self._skip_lf or b"\r" in chunk:
            chunk = self._normalise(chunk)
        events: list[bytes] = []
        if self._oversize or not chunk:
            pass
        elif b"\n\n" in chunk or (self._ends_line and chunk.startswith(b"\n")):
            events = self._complete(chunk)
        else:
            self._keep(chunk)
        if self._oversize and not events:
            raise UpstreamMalformed("The upstream sent an event that is too large.")
        return events

    def end(self) -> bytes:
        """Bytes left over at the end of the stream: an event that was never completed."""
        rest = b"".join(self._parts)
        self._parts.clear()
        if self._at_start:
            rest = rest.removeprefix(BYTE_ORDER_MARK)
        return rest.strip(b"\n")

    def _complete(self, chunk: bytes) -> list[bytes]:
        """The events up to the last blank line."""
        if self._parts:
            chunk = b"".join([*self._parts, chunk])
            self._parts.clear()
        *blocks, rest = chunk.split(b"\n\n")
        self._size = 0
        self._ends_line = False
        events: list[bytes] = []
        for block in blocks:
            if len(block) > self._max_event:
                self._oversize = True
                return events
            if self._at_start:
                self._at_start = False
                block = block.removeprefix(BYTE_ORDER_MARK)
            data = event_data(block)
            if data is not None:
                events.append(data)
        if rest:
            self._keep(rest)
        return events

    def _keep(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        self._ends_line = data.endswith(b"\n")
        if self._size - self._ends_line > self._max_event:
            self._oversize = True
            self._parts.clear()

    def _normalise(self, chunk: bytes) -> bytes:
        """CRLF and CR to LF; a CR at the end of a chunk ends its line at once."""
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if chunk.endswith(b"\r"):
            self._skip_lf = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def event_data(block: bytes) -> bytes | None:
    """The data of one event, given its lines without the final blank one; None if it has none."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = []
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" ") if colon else b"")
    return b"\n".join(lines) if lines else None
