"""What the mock engine saw: each request, what became of it, and when its client left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from prime_inference.wire.http import Headers

KEPT_REQUESTS = 1000  # more than any test sends; a benchmark overwrites them
KEPT_BYTES = 64 * 1024 * 1024  # of bodies

OPEN = "answering"
CLIENT_LEFT = "client left"


class Seen:
    """One request and its outcome.

    `outcome` is `answering` while it lasts; then `complete`, `client left`, or what the
    behaviour did (`refused`, `cut`, `reset`, `stalled`, ...). `tokens` were written by then,
    `seconds` had passed since the request was whole.
    """

    __slots__ = (
        "behaviour", "body", "headers", "method", "model", "number", "outcome", "path",
        "received_at", "seconds", "status", "tokens",
    )  # fmt: skip

    def __init__(self, number: int, received_at: float, method: str, path: str,
                 headers: Headers, body: bytes) -> None:  # fmt: skip
        self.number = number
        self.received_at = received_at
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.model = ""
        self.behaviour = ""
        self.status = 0
        self.outcome = OPEN
        self.tokens = 0
        self.seconds = 0.0

    def header(self, name: str) -> str | None:
        """The first header field of that name."""
        wanted = name.lower().encode()
        for key, value in self.headers:
            if key.lower() == wanted:
                return value.decode("latin-1")
        return None

    @property
    def json(self) -> Any:
        """The body, decoded. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body)

    def as_object(self) -> dict[str, Any]:
        """For `GET /mock/requests`; a body that is no JSON is given as text."""
        try:
            body = self.json
        except msgspec.DecodeError:
            body = self.body.decode("utf-8", "replace")
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in self.headers}
        fields = ("number", "received_at", "method", "path", "model", "behaviour", "status",
                  "outcome", "tokens", "seconds")  # fmt: skip
        return {name: getattr(self, name) for name in fields} | {"headers": headers, "body": body}


class Journal:
    """The most recent requests, bounded in number and in bytes."""

    def __init__(self) -> None:
        self._seen: deque[Seen] = deque()
        self._bytes = 0
        self._count = 0

    def open(
        self, received_at: float, method: str, path: str, headers: Headers, body: bytes
    ) -> Seen:
        """Write down a request; its outcome is filled in by whoever answers it."""
        self._count += 1
        seen = Seen(self._count, received_at, method, path, headers, body)
        self._seen.append(seen)
        self._bytes += len(body)
        while len(self._seen) > KEPT_REQUESTS or self._bytes > KEPT_BYTES:
            self._bytes -= len(self._seen.popleft().body)
        return seen

    def __iter__(self) -> Iterator[Seen]:
        return iter(self._seen)

    @property
    def count(self) -> int:
        """Requests since the start or the last `clear`, those no longer kept included."""
        return self._count

    def clear(self) -> None:
        self._seen.clear()
        self._bytes = 0
        self._count = 0
