"""The API of an inference server, as a client that turns every failure into a CommandFailed."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeVar

import httpx
import msgspec

import prime_inference
from prime_inference.cli.answer import in_band_failure
from prime_inference.cli.failures import (
    AnswerMalformed,
    CommandFailed,
    ConnectionFailed,
    NoApiKey,
    NothingAnswers,
    ServerRefused,
    TimedOut,
)
from prime_inference.cli.replies import Chunk, Completion, error_object
from prime_inference.cli.settings import Settings
from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.sse import DONE, SseFramer

TIMEOUTS = httpx.Timeout(
    connect=10.0,  # a handshake to another continent takes 0.5 s; beyond this nobody is there
    read=600.0,  # a long prompt may wait this long for its first token
    write=60.0,
    pool=60.0,
)
START_HINT = (
    "Start a server:                prime inference serve\n"
    "Or one for this question only: prime inference chat --serve MODEL MESSAGE"
)
EXCERPT = 500  # characters shown of a body that is not what the API promises

Reply = TypeVar("Reply")


class InferenceClient:
    """Speaks to one server. Use it as a context manager; every method raises CommandFailed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._url = settings.inference_url.value
        # a proxy named in the environment cannot reach this machine's own loopback
        self._http = httpx.Client(
            headers=_headers(settings), timeout=TIMEOUTS, trust_env=not settings.is_local
        )

    def __enter__(self) -> InferenceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> dict[str, Any]:
        """The model list as the server sends it, `data` being a list of objects."""
        with self._failures():
            response = self._http.get(f"{self._url}/models")
        self._check_status(response)
        listing = _decode(response.content, dict[str, Any])
        if "data" not in listing and isinstance(listing.get("models"), list):
            listing["data"] = listing.pop("models")
        rows = listing.get("data")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise AnswerMalformed("The server's model list has no list of models in `data`.")
        return listing

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """A JSON object of the API."""
        with self._failures():
            response = self._http.get(
                f"{self._url}{path}", params={k: str(v) for k, v in query.items()}
            )
        self._check_status(response)
        return _decode(response.content, dict[str, Any])

    def chat(self, payload: Mapping[str, Any]) -> tuple[Completion, dict[str, Any]]:
        """A whole answer: what this client reads of it, and all of it."""
        with self._failures():
            response = self._http.post(f"{self._url}/chat/completions", json=payload)
        self._check_status(response)
        completion = _decode(response.content, Completion)
        if completion.error is not None:
            raise in_band_failure(completion.error)
        if not completion.choices:
            raise AnswerMalformed("The server's answer has no choices.")
        return completion, _decode(response.content, dict[str, Any])

    def chat_stream(self, payload: Mapping[str, Any]) -> Generator[Chunk, None, None]:
        """The chunks of an answer as they come; closing the iterator closes the connection."""
        body = {**payload, "stream": True}
        with (
            self._failures(),
            self._http.stream("POST", f"{self._url}/chat/completions", json=body) as response,
        ):
            if not response.is_success:
                response.read()
                self._check_status(response)
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise AnswerMalformed(
                    f"The server sent {kind or 'an answer without a type'} instead of a stream."
                )
            for data in _events(response.iter_bytes()):
                yield _decode(data, Chunk)

    def _check_status(self, response: httpx.Response) -> None:
        if not response.is_success:
            raise _refusal(response, self._settings)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """What the HTTP library raises, as failures of the command."""
        try:
            yield
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unreachable(error) from error
        except httpx.TimeoutException as error:
            raise TimedOut(f"{self._url} did not go on within {TIMEOUTS.read:.0f} s.") from error
        except httpx.DecodingError as error:
            raise AnswerMalformed(f"The server's answer cannot be decoded: {error}") from error
        except httpx.TransportError as error:
            raise ConnectionFailed(
                f"The connection to {self._url} broke before the answer was whole."
            ) from error

    def _unreachable(self, error: Exception) -> CommandFailed:
        reason = "" if self._settings.is_local else f" ({error})"
        return NothingAnswers(
            f"Nothing answers at {self._url}{reason}.",
            hint=START_HINT
            if self._settings.is_local
            else f"The URL comes from: {self._settings.inference_url.source}.",
        )


def require_key(settings: Settings) -> None:
    """Raises NoApiKey when there is no key for a server that is not on this machine."""
    if settings.api_key is None and not settings.is_local:
        raise NoApiKey(
            f"No API key for {settings.inference_url.value}.",
            hint="Run `prime config set-api-key` or set PRIME_API_KEY.",
        )


def _headers(settings: Settings) -> dict[str, str]:
    version = f"prime-inference/{prime_inference.__version__} python/{platform.python_version()}"
    headers = {"Accept": "application/json, text/event-stream", "User-Agent": version}
    if settings.api_key is not None:
        headers["Authorization"] = f"Bearer {settings.api_key.value}"
        if settings.team_id is not None:
            headers["X-Prime-Team-ID"] = settings.team_id.value
    return headers


def _events(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The data of each event up to `[DONE]`."""
    framer = SseFramer()
    for chunk in chunks:
        try:
            events = framer.feed(chunk)
        except UpstreamMalformed as error:
            raise AnswerMalformed("The server sent an event that is too large.") from error
        for data in events:
            if data.strip() == DONE:
                return
            yield data


def _decode(data: bytes, kind: type[Reply]) -> Reply:
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise AnswerMalformed(
            f"The server's answer is not what the API promises ({error}): {_excerpt(data)}"
        ) from error


def _excerpt(data: bytes) -> str:
    text = data.decode("utf-8", "replace").strip()
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."


def _refusal(response: httpx.Response, settings: Settings) -> ServerRefused:
    """The failure for an answer whose status is not a success."""
    status = response.status_code
    error = error_object(_error_field(response))
    retry_after = _retry_after(response)
    payment = "Payment required. " if status == httpx.codes.PAYMENT_REQUIRED else ""
    return ServerRefused(
        f"{payment}{error.message} ({', '.join(filter(None, (str(status), error.code)))})",
        status=status,
        server_code=error.code,
        body=error.body,
        retry_after=retry_after,
        request_id=response.headers.get("x-request-id"),
        hint=_hint(status, retry_after, settings),
    )


def _error_field(response: httpx.Response) -> Any:
    """The `error` of an error answer; where there is none, something to show instead."""
    try:
        body = msgspec.json.decode(response.content)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict) and body.get("error"):
        return body["error"]
    return _excerpt(response.content) or response.reason_phrase or "The server gave no reason."


def _hint(status: int, retry_after: float | None, settings: Settings) -> str | None:
    """What to do about an error status."""
    if status == httpx.codes.UNAUTHORIZED:
        origin = settings.api_key.source if settings.api_key else "none is set"
        return f"API key: {origin}. Set one: `prime config set-api-key` or PRIME_API_KEY."
    if status == httpx.codes.NOT_FOUND:
        return f"`prime inference models` lists what {settings.inference_url.value} serves."
    return None if retry_after is None else f"Try again in {retry_after:g} s."


def _retry_after(response: httpx.Response) -> float | None:
    """`Retry-After` in seconds; its other form, a date, is not used by this API."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isascii() and value.isdecimal() else None
