"""Ask two OpenAI-compatible endpoints the same questions, and remember every answer.

The two differ in their KV cache only: BF16 or FP8 on one side, NVFP4 on the other. Answers go
to a file of JSON lines as they come, so a run that stops is taken up where it stopped; the
first line is the run's settings, and a file of other settings is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import httpx
import msgspec

from prime_inference.kvcache.accuracy.tasks import Question
from prime_inference.kvcache.errors import KvCacheError

ANSWER_TOKENS: Final = 512  # the longest expected answer, eight facts, takes about 200
TIMEOUT: Final = httpx.Timeout(connect=10, read=900, write=60, pool=None)  # 128K takes minutes
ATTEMPTS: Final = 3  # a connection that breaks once in hours must not cost the run
RETRY_SECONDS: Final = 1.0
LONGEST_WAIT: Final = 60.0  # a Retry-After beyond it is not waited for
# Of a whole answer, where a server sends a byte now and then and no read times out: a little
# over the longest read, since an answer that is not streamed comes at once.
ANSWER_SECONDS: Final = 960.0
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024  # 9,000 tokens are 100 KB; more is no completion


# A thinking model spends some thousand tokens before its answer; one that does not think ends by
# itself, so the room costs it nothing. Not measured: a run whose answers are cut says so.
REASONING_TOKENS: Final = 8192
THOUGHT_END: Final = "</think>"  # where a server leaves the thoughts in the content


class EndpointFailed(KvCacheError):
    """An endpoint refused a question, or did not answer after all attempts."""


class RunMismatch(KvCacheError):
    """The file of answers belongs to a run with other settings."""


class Answer(msgspec.Struct, frozen=True):
    """What one endpoint said to one question."""

    side: str
    question: str
    score: float
    text: str
    finish_reason: str | None = None

    @property
    def unanswered(self) -> bool:
        """Whether it says nothing, or was cut short: its score then tells nothing of the model."""
        return not self.text.strip() or self.finish_reason == "length"


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """What of a chat completion is read."""

    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]


class RunSettings(msgspec.Struct, frozen=True, tag="settings"):
    """What makes two runs the same run."""

    seed: int
    lengths: tuple[int, ...]
    per_cell: int
    tasks: tuple[str, ...]
    models: dict[str, str]
    urls: dict[str, str]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base_url` ends in /v1; `side` is `reference` or `candidate`."""

    side: str
    base_url: str
    model: str
    api_key: str | None = None


class AnswerFile:
    """The JSON lines of one run."""

    def __init__(self, path: Path, settings: RunSettings) -> None:
        """Open or begin the file. Raises `RunMismatch`."""
        self._path = path
        self.answers: dict[tuple[str, str], Answer] = {}
        begun = msgspec.json.encode(settings) + b"\n"
        raw = path.read_bytes() if path.exists() else b""
        if begun.startswith(raw):  # nothing, or what a full disk left of the first line
            path.write_bytes(begun)
            return
        first, *rest = raw.split(b"\n")
        try:
            known = msgspec.json.decode(first, type=RunSettings)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise RunMismatch(f"{path} does not begin with a run's settings") from error
        if known != settings:
            raise RunMismatch(f"{path} holds another run: {_difference(known, settings)}")
        whole = rest[:-1]  # after the last line feed stands nothing, or a line cut short
        for number, line in enumerate(whole, start=2):
            try:
                answer = msgspec.json.decode(line, type=Answer)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise RunMismatch(f"{path}, line {number} is no answer: {error}") from error
            self.answers[answer.side, answer.question] = answer
        if rest and rest[-1]:
            path.write_bytes(b"\n".join([first, *whole]) + b"\n")

    def add(self, answer: Answer) -> None:
        """Keep an answer, on disk before this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(answer) + b"\n")
        self.answers[answer.side, answer.question] = answer


async def ask_all(
    endpoints: Sequence[Endpoint],
    questions: Sequence[Question],
    file: AnswerFile,
    *,
    concurrency: int = 4,
    max_tokens: int = ANSWER_TOKENS + REASONING_TOKENS,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Put every question to every endpoint that has not answered it yet.

    `concurrency` questions are under way at each endpoint. `progress` gets (done, all).
    Raises `EndpointFailed` once a question has failed `ATTEMPTS` times.
    """
    total = len(endpoints) * len(questions)
    progress(len(file.answers), total)
    async with httpx.AsyncClient(timeout=TIMEOUT) as client, asyncio.TaskGroup() as group:
        for endpoint in endpoints:
            slots = asyncio.Semaphore(concurrency)
            for question in questions:
                if (endpoint.side, question.id) not in file.answers:
                    group.create_task(
                        _ask_one(
                            client, endpoint, question, file, slots, progress, total, max_tokens
                        )
                    )


async def _ask_one(
    client: httpx.AsyncClient,
    endpoint: Endpoint,
    question: Question,
    file: AnswerFile,
    slots: asyncio.Semaphore,
    progress: Callable[[int, int], None],
    total: int,
    max_tokens: int,
) -> None:
    async with slots:
        text, reason = await _answer(client, endpoint, question, max_tokens)
    file.add(Answer(endpoint.side, question.id, question.score(text), text, reason))
    progress(len(file.answers), total)


async def _answer(
    client: httpx.AsyncClient, endpoint: Endpoint, question: Question, max_tokens: int
) -> tuple[str, str | None]:
    url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
    # Bytes, as a key may hold what is not ASCII; the server then refuses it.
    key = endpoint.api_key
    headers = {b"Authorization": f"Bearer {key}".encode()} if key else {}
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": question.prompt}],
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    last, wait = "", 0.0
    for attempt in range(ATTEMPTS):
        await asyncio.sleep(max(wait, RETRY_SECONDS * attempt))
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                client.stream("POST", url, json=body, headers=headers) as reply,
            ):
                raw = await _bounded(reply, endpoint)
        except (httpx.RequestError, httpx.InvalidURL, TimeoutError) as error:
            last, wait = repr(error), 0.0
            continue
        if reply.status_code == httpx.codes.OK:
            return _content(raw, endpoint)
        last, wait = f"status {reply.status_code}: {_beginning(raw)}", retry_after(reply.headers)
        if reply.status_code < 500 and reply.status_code != httpx.codes.TOO_MANY_REQUESTS:
            break
    raise EndpointFailed(f"{endpoint.side} failed on {question.id}: {last}")


async def _bounded(reply: httpx.Response, endpoint: Endpoint) -> bytes:
    raw = bytearray()
    async for piece in reply.aiter_bytes():
        raw += piece
        if len(raw) > MAX_ANSWER_BYTES:
            raise EndpointFailed(f"{endpoint.side} sent more than {MAX_ANSWER_BYTES} bytes")
    return bytes(raw)


def retry_after(headers: Mapping[str, str]) -> float:
    """The seconds of `Retry-After`, where they are seconds and not too many; else 0."""
    try:
        seconds = float(headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds <= LONGEST_WAIT else 0.0


def _content(raw: bytes, endpoint: Endpoint) -> tuple[str, str | None]:
    """The answer without its thoughts, and the finish reason."""
    try:
        choice = msgspec.json.decode(raw, type=_Completion).choices[0]
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EndpointFailed(
            f"{endpoint.side} sent no completion ({error}): {_beginning(raw)}"
        ) from error
    text = choice.message.content or ""
    if text.lstrip().startswith("<think>") and THOUGHT_END not in text:
        text = ""  # it thought to the end
    return text.rpartition(THOUGHT_END)[2], choice.finish_reason


def _beginning(raw: bytes) -> str:
    return raw[:200].decode(errors="replace")


def _difference(known: RunSettings, given: RunSettings) -> str:
    """The settings in which two runs differ, in words."""
    before, now = msgspec.structs.asdict(known), msgspec.structs.asdict(given)
    return "; ".join(
        f"{name} was {before[name]}, now {now[name]}" for name in now if before[name] != now[name]
    )
