"""The mock engine: an OpenAI-compatible server whose answers are known beforehand.

async with MockEngine(pace=0.02) as engine:
    ... # requests to engine.base_url
    assert engine.requests[-1].outcome == "complete"
"""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import msgspec

from prime_inference.engines.mock.answer import compose
from prime_inference.engines.mock.behaviour import (
    PLAIN,
    SCENARIOS,
    Behaviour,
    Occasions,
    UnknownBehaviour,
)
from prime_inference.engines.mock.connection import MockConnection
from prime_inference.engines.mock.journal import Journal, Seen
from prime_inference.engines.mock.load import Load
from prime_inference.engines.mock.pacer import Pacer
from prime_inference.engines.mock.render import Rendered, Request, open_object, render
from prime_inference.engines.mock.request import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    input_prompts,
)
from prime_inference.engines.mock.script import (
    Pace,
    Script,
    Step,
    context_length_error,
    error_body,
    json_answer,
    refusal,
    stream_script,
    whole_script,
)
from prime_inference.engines.mock.text import ANSWER_TOKENS, chat_prompt, word
from prime_inference.wire.http import Headers

BEHAVIOUR_HEADER = b"x-mock-behaviour"
MODEL_PREFIX = "mock/"  # what follows it in a model's name is a behaviour or a scenario
PLAIN_MODEL = "mock/plain"
CONTEXT_TOKENS = 131_072
EMBEDDING_DIMENSIONS = 8
SEND_BUFFER_BYTES = 128 * 1024  # the kernel would hold 2.5 MB, and hide a reader that stopped
PLANS = 256  # rendered answers kept; a benchmark repeats one request for ever
PLAN_BODY_BYTES = 64 * 1024  # larger requests are not kept

_chat = msgspec.json.Decoder(ChatRequest)
_completion = msgspec.json.Decoder(CompletionRequest)
_embedding = msgspec.json.Decoder(EmbeddingRequest)


@dataclass(frozen=True, slots=True)
class Plan:
    """A request and its answer, but for the id and the time."""

    request: Request
    rendered: Rendered
    prompt_tokens: int


class Refused(Exception):
    """The request itself is wrong: `status` and error body of the answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class MockEngine:
    """A server on the running event loop.

    Times are in seconds. `behaviour` (see the module `behaviour`) applies to every request
    that does not name one by its model or header; `api_key`, if given, must be sent.
    """

    def __init__(
        self,
        *,
        models: Sequence[str] = (PLAIN_MODEL,),
        pace: float = 0.0,
        first_token: float = 0.0,
        answer_tokens: int = ANSWER_TOKENS,
        context_tokens: int = CONTEXT_TOKENS,
        behaviour: str = "",
        api_key: str | None = None,
    ) -> None:
        self.models = list(models)
        self.connections: set[MockConnection] = set()
        self.pacer: Pacer = None  # type: ignore[assignment]  # set by `start`
        self.load: Load = None  # type: ignore[assignment]  # set by `start`
        self.base_url = ""
        self._pace = Pace(first_token, pace)
        self._answer_tokens = answer_tokens
        self._context_tokens = context_tokens
        self._bearer = None if api_key is None else f"Bearer {api_key}".encode()
        self._journal = Journal()
        self._occasions = Occasions()
        self._specs: dict[str | None, str] = {}
        self._plans: dict[tuple[str, bytes], Plan] = {}
        self._sayings: deque[str] = deque()
        self._number = 0
        self._listener: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop = None  # type: ignore[assignment]  # set by `start`
        self.behave(behaviour)

    # -- life

    async def start(
        self, host: str = "127.0.0.1", port: int = 0, *, reuse_port: bool = False
    ) -> str:
        """Listen; returns the base URL, `http://127.0.0.1:PORT/v1`. Raises OSError.

        `reuse_port`: whoever started us holds the port for the time we are down.
        """
        self._loop = asyncio.get_running_loop()
        self.pacer = Pacer(self._loop)
        self.load = Load(self._loop)
        listener = socket.create_server((host, port), backlog=4096, reuse_port=reuse_port)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._listener = await self._loop.create_server(
            lambda: MockConnection(self, self._loop), sock=listener
        )
        self.base_url = f"http://{host}:{listener.getsockname()[1]}/v1"
        return self.base_url

    async def stop(self) -> None:
        """Close the listener and every connection."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self.connections):
            connection.abort()
        self.pacer.stop()
        while self.connections:  # noqa: ASYNC110  # an event would cost every connection
            await asyncio.sleep(0)

    async def __aenter__(self) -> MockEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.stop()

    # -- what a test says and asks

    def behave(self, spec: str, *, model: str | None = None) -> None:
        """From now on treat requests (for `model`) like this; an empty `spec`: plainly.

        Conditions (`first-N`, `for-T`) count anew. Raises UnknownBehaviour.
        """
        if spec:
            Behaviour.parse(SCENARIOS.get(spec, spec))
        self._specs[model] = spec
        self._occasions.forget()

    def say(self, *texts: str) -> None:
        """Answer the next chat requests and completions with these texts, one each."""
        self._sayings.extend(texts)

    @property
    def requests(self) -> list[Seen]:
        """The latest requests for an answer or embeddings, oldest first."""
        return list(self._journal)

    def reset(self) -> None:
        """Forget the requests seen, and count conditions anew."""
        self._journal.clear()
        self._occasions.forget()
        self.load.reset()
        self._sayings.clear()

    async def quiet(self, seconds: float = 5.0) -> None:
        """Return when no answer is under way. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while any(c.busy for c in self.connections):  # noqa: ASYNC110  # or every answer
                await asyncio.sleep(0.005)

    # -- called by connections

    def answer(
        self, method: str, target: str, headers: Headers, body: bytes
    ) -> tuple[Script, Seen | None]:
        """The script for one request, and where its outcome is to be written down."""
        path = target.partition("?")[0]
        if method != "POST" or path.startswith("/mock/"):
            return self._look_up(method, path, body), None
        seen = self._journal.open(time.time(), method, path, headers, body)
        try:
            self._authenticate(headers)
            if path == "/v1/embeddings":
                return self._embed(body), seen
            if path == "/tokenize":
                return self._tokenize(body), seen
            return self._generate(path, headers, body, seen), seen
        except Refused as refused:
            return _at_once(refused.body, refused.status), seen

    def _authenticate(self, headers: Headers) -> None:
        if self._bearer is None or _header(headers, b"authorization") == self._bearer:
            return
        raise Refused(401, error_body("Unauthorized", "authentication_error", "invalid_api_key"))

    # -- generation

    def _generate(self, path: str, headers: Headers, body: bytes, seen: Seen) -> Script:
        plan = self._plans.get((path, body))
        if plan is None:
            plan = self._plan(path, body, PLAIN)
            if len(body) <= PLAN_BODY_BYTES:
                if len(self._plans) >= PLANS:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[path, body] = plan
        request = plan.request
        seen.model = request.model
        behaviour = self._behaviour(request.model, headers, seen)
        if behaviour is not PLAIN:
            prefilled = isinstance(request, ChatRequest) and request.prefilled
            refused = refusal(behaviour, prefilled=prefilled, context_tokens=self._context_tokens)
            if refused is not None:
                return refused
            plan = self._plan(path, body, behaviour)
        if self._sayings:
            plan = self._plan(path, body, behaviour, self._sayings.popleft())
        chat = isinstance(request, ChatRequest)
        self._number += 1
        opening = open_object(
            chat, request.stream, f"mock{self._number:08x}", int(time.time()), request.model
        )
        script = stream_script if request.stream else whole_script
        return script(plan.rendered, opening, behaviour, self._paced(behaviour))

    def _plan(self, path: str, body: bytes, behaviour: Behaviour, said: str | None = None) -> Plan:
        request = self._read(path, body)
        length = self._answer_tokens if behaviour.answer is None else behaviour.answer
        try:
            answer = compose(request, length, behaviour, said)
        except ValueError as error:
            raise Refused(400, _invalid(str(error))) from None
        if answer.prompt_tokens > self._context_tokens:
            raise Refused(400, context_length_error(self._context_tokens, answer.prompt_tokens))
        return Plan(request, render(request, answer, behaviour), answer.prompt_tokens)

    @staticmethod
    def _read(path: str, body: bytes) -> Request:
        try:
            match path:
                case "/v1/chat/completions":
                    return _chat.decode(body)
                case "/v1/completions":
                    return _completion.decode(body)
                case _:
                    raise Refused(404, _not_found(path))
        except msgspec.DecodeError as error:
            raise Refused(400, _invalid(str(error))) from None

    def _behaviour(self, model: str, headers: Headers, seen: Seen) -> Behaviour:
        spec = self._spec(model, headers)
        if not spec:
            return PLAIN
        try:
            behaviour = Behaviour.parse(SCENARIOS.get(spec, spec))
        except UnknownBehaviour as error:
            raise Refused(404, error_body(str(error), "NotFoundError", 404, "model")) from None
        if not self._occasions.applies(spec, behaviour, self._loop.time()):
            return PLAIN
        seen.behaviour = spec
        return behaviour

    def _spec(self, model: str, headers: Headers) -> str:
        """The behaviour asked for: by the header, by the model's name, or by `behave`."""
        header = _header(headers, BEHAVIOUR_HEADER)
        if header is not None:
            return header.decode("latin-1")
        if model.startswith(MODEL_PREFIX) and model not in self.models:
            return model.removeprefix(MODEL_PREFIX)
        spec = self._specs.get(model)
        return self._specs.get(None, "") if spec is None else spec

    def _paced(self, behaviour: Behaviour) -> Pace:
        if behaviour.slow_first is behaviour.pace is None:
            return self._pace
        first = self._pace.first if behaviour.slow_first is None else behaviour.slow_first
        return Pace(first, self._pace.gap if behaviour.pace is None else behaviour.pace)

    # -- everything else

    def _embed(self, body: bytes) -> Script:
        try:
            request = _embedding.decode(body)
        except msgspec.DecodeError as error:
            return _at_once(_invalid(str(error)), 400)
        prompts = input_prompts(request.input)
        dimensions = request.dimensions or EMBEDDING_DIMENSIONS
        data = [
            {"object": "embedding", "index": n,
             "embedding": _embedding_of(prompt.seed, dimensions, request.encoding_format)}
            for n, prompt in enumerate(prompts)
        ]  # fmt: skip
        tokens = sum(prompt.tokens for prompt in prompts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return _json({"object": "list", "data": data, "model": request.model, "usage": usage})

    def _tokenize(self, body: bytes) -> Script:
        """vLLM's count of a conversation's tokens."""
        try:
            request = _conversation.decode(body)
        except msgspec.DecodeError as error:
            return _at_once(_invalid(str(error)), 400)
        prompt = chat_prompt(request.messages)
        return _json({"count": prompt.tokens, "max_model_len": self._context_tokens,
                      "tokens": prompt.ids})  # fmt: skip

    def _look_up(self, method: str, path: str, body: bytes) -> Script:
        match method, path:
            case "GET", "/health":
                return _at_once(b"")
            case "GET", "/v1/models":
                return _json({"object": "list", "data": [self._card(m) for m in self.models]})
            case "GET", "/mock/requests":
                requests = [seen.as_object() for seen in self._journal]
                return _json({"count": self._journal.count, "requests": requests})
            case "GET", "/mock/load":
                return _json({"in_flight": self.load.in_flight, "most": self.load.most})
            case "POST", "/mock/reset":
                self.reset()
                return _json({})
            case "POST", "/mock/behaviour":
                return self._behave_on_request(body)
            case _:
                return _at_once(_not_found(path), 404)

    def _behave_on_request(self, body: bytes) -> Script:
        try:
            wish = msgspec.json.decode(body, type=_Wish)
            self.behave(wish.behaviour, model=wish.model)
        except (msgspec.DecodeError, UnknownBehaviour) as error:
            return _at_once(_invalid(str(error)), 400)
        return _json({})

    def _card(self, model: str) -> dict[str, Any]:
        return {"id": model, "object": "model", "created": 0, "owned_by": "mock", "root": model,
                "parent": None, "max_model_len": self._context_tokens}  # fmt: skip


class _Conversation(msgspec.Struct):
    """Body of `POST /tokenize`."""

    messages: list[dict[str, Any]]


_conversation = msgspec.json.Decoder(_Conversation)


class _Wish(msgspec.Struct, forbid_unknown_fields=True):
    """Body of `POST /mock/behaviour`."""

    behaviour: str
    model: str | None = None


def _header(headers: Headers, name: bytes) -> bytes | None:
    for key, value in headers:
        if key.lower() == name:
            return value
    return None


def _at_once(body: bytes, status: int = 200) -> Script:
    outcome = "complete" if status < 400 else "refused"
    return Script([Step(0, json_answer(status, body))], outcome=outcome, status=status)


def _json(value: Any) -> Script:
    return _at_once(msgspec.json.encode(value))


def _invalid(message: str) -> bytes:
    return error_body(message, "BadRequestError", 400)


def _not_found(path: str) -> bytes:
    return error_body(f"The path {path} does not exist.", "NotFoundError", 404)


def _embedding_of(seed: int, dimensions: int, encoding: str) -> list[float] | str:
    """A unit vector made of the prompt's words."""
    raw = [sum(word(seed, k).encode()) % 201 - 100 or 1 for k in range(dimensions)]
    length = sum(x * x for x in raw) ** 0.5
    vector = [x / length for x in raw]
    if encoding == "base64":
        return base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
    return vector
