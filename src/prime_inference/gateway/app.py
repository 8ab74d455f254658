"""The public API: paths, methods, authentication, and errors in OpenAI's shape."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

import msgspec

from prime_inference.domain.errors import (
    ApiError,
    InternalFailure,
    MethodNotAllowed,
    NotFound,
    UnsupportedParameter,
)
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.gateway.auth import API_KEY, Authenticator
from prime_inference.gateway.inference import Inference
from prime_inference.gateway.messages_api import MessagesApi
from prime_inference.gateway.metrics import Metrics
from prime_inference.gateway.models_api import ModelsApi
from prime_inference.gateway.openapi import openapi_document
from prime_inference.gateway.operations import (
    chat_operation,
    completion_operation,
    embedding_operation,
)
from prime_inference.gateway.request_ids import request_ids
from prime_inference.gateway.responses_api import ResponsesApi
from prime_inference.gateway.sessions import session_name
from prime_inference.wire.anthropic.errors import render_error as render_anthropic_error
from prime_inference.wire.http import Headers, Reply, Request
from prime_inference.wire.openai.bounds import SchemaBounds
from prime_inference.wire.openai.chat_request import decode_chat_request
from prime_inference.wire.openai.completion_request import (
    decode_completion_request,
    decode_embedding_request,
)
from prime_inference.wire.openai.errors import JSON_TYPE, render_error

log = logging.getLogger(__name__)

BASE = "/api/v1"
MODELS = f"{BASE}/models"
RESPONSES = f"{BASE}/responses"
MESSAGES = f"{BASE}/messages"
UNREAD_BODY_BYTES = 64 * 1024  # a larger body is not read before its key is checked

Endpoint = Callable[[Request, Reply, str], Awaitable[None] | None]
"""Answers at once, or returns what is to be awaited: a coroutine less on the busy path."""


class Gateway:
    """The handler behind the public port."""

    def __init__(
        self,
        auth: Authenticator,
        inference: Inference,
        models: ModelsApi,
        responses: ResponsesApi,
        messages: MessagesApi,
        metrics: Metrics,
        more_routes: Mapping[str, Mapping[str, Endpoint]] | None = None,
    ) -> None:
        self._auth = auth
        self._inference = inference
        self._models = models
        self._responses = responses
        self._messages = messages
        self._metrics = metrics
        self._schemas = SchemaBounds()
        self._ids = request_ids()
        self._openapi = msgspec.json.encode(openapi_document(accounts=bool(more_routes)))
        self._routes: dict[str, Mapping[str, Endpoint]] = {
            f"{BASE}/chat/completions": {"POST": self._chat},
            f"{BASE}/completions": {"POST": self._completions},
            f"{BASE}/embeddings": {"POST": self._embeddings},
            RESPONSES: {"POST": self._create_response},
            MESSAGES: {"POST": self._create_message},
            f"{MESSAGES}/count_tokens": {"POST": self._count_tokens},
            MODELS: {"GET": self._list_models},
            f"{BASE}/openapi.json": {"GET": self._openapi_json},
            **(more_routes or {}),
        }
        self._below_models: dict[str, Mapping[str, Endpoint]] = {
            f"{MODELS}/{{author}}/{{slug}}{what}": {"GET": self._show_model}
            for what in ("", "/endpoints")
        }
        self._below_responses: dict[str, Mapping[str, Endpoint]] = {
            f"{RESPONSES}/{{id}}": {"GET": self._show_response, "DELETE": self._remove_response},
            f"{RESPONSES}/{{id}}/cancel": {"POST": self._cancel_response},
            f"{RESPONSES}/{{id}}/input_items": {"GET": self._input_items},
        }

    @property
    def operations(self) -> set[tuple[str, str]]:
        """Every method and path that is answered, paths as the OpenAPI document writes them."""
        tables = {**self._routes, **self._below_models, **self._below_responses}
        return {(method, path) for path, methods in tables.items() for method in methods}

    async def handle(self, request: Request, reply: Reply) -> None:
        """Serve one request; see `wire.http.Handler`."""
        request_id = next(self._ids)
        try:
            answering = self._endpoint(request)(request, reply, request_id)
            if answering is not None:
                await answering
        except ApiError as error:
            self._refuse(error, request_id, request, reply)
            error.dealt_with()
        except Exception:
            log.exception("request %s failed", request_id)
            self._refuse(
                InternalFailure("Internal error. Quote the request id when you report it."),
                request_id,
                request,
                reply,
            )

    def check_head(self, request: Request) -> None:
        """Refuse strangers before a large body of theirs is read. Raises AuthenticationFailed."""
        length = request.header(b"content-length")
        if length is None and request.header(b"transfer-encoding") is None:
            return
        if length is None or int(length) > UNREAD_BODY_BYTES:
            self._auth.authenticate(request)

    def refusal(self, error: ApiError) -> tuple[int, Headers, bytes]:
        """The answer to what the server refuses before it comes to `handle`."""
        return self._error_answer(error, next(self._ids))

    # -- endpoints

    def _chat(self, request: Request, reply: Reply, request_id: str) -> Awaitable[None]:
        key = self._auth.authenticate(request, "chat/completions")
        operation = chat_operation(
            decode_chat_request(request.body, self._schemas), session_name(request)
        )
        return self._inference.serve(operation, key, request_id, reply)

    def _completions(self, request: Request, reply: Reply, request_id: str) -> Awaitable[None]:
        key = self._auth.authenticate(request, "completions")
        operation = completion_operation(
            decode_completion_request(request.body), session_name(request)
        )
        return self._inference.serve(operation, key, request_id, reply)

    def _embeddings(self, request: Request, reply: Reply, request_id: str) -> Awaitable[None]:
        key = self._auth.authenticate(request, "embeddings")
        operation = embedding_operation(decode_embedding_request(request.body))
        return self._inference.serve(operation, key, request_id, reply)

    def _create_response(self, request: Request, reply: Reply, request_id: str) -> Awaitable[None]:
        key = self._auth.authenticate(request, "responses")
        return self._responses.create(request.body, key, request_id, reply)

    async def _show_response(self, request: Request, reply: Reply, request_id: str) -> None:
        key = self._auth.authenticate(request, "responses")
        refuse_query(request)
        body = await self._responses.show(_last_part(request.path), key)
        reply.send(200, [JSON_TYPE, (b"x-request-id", request_id.encode())], body)

    async def _remove_response(self, request: Request, reply: Reply, request_id: str) -> None:
        key = self._auth.authenticate(request, "responses")
        self._send_json(
            await self._responses.remove(_last_part(request.path), key), request_id, reply
        )

    async def _cancel_response(self, request: Request, reply: Reply, request_id: str) -> None:
        key = self._auth.authenticate(request, "responses")
        await self._responses.cancel(_last_part(request.path.removesuffix("/cancel")), key)

    async def _input_items(self, request: Request, reply: Reply, request_id: str) -> None:
        key = self._auth.authenticate(request, "responses")
        response_id = _last_part(request.path.removesuffix("/input_items"))
        page = await self._responses.input_items(response_id, key, request.query)
        self._send_json(page, request_id, reply)

    def _create_message(self, request: Request, reply: Reply, request_id: str) -> Awaitable[None]:
        key = self._auth.authenticate(request, "messages")
        return self._messages.create(request.body, key, request_id, reply)

    async def _count_tokens(self, request: Request, reply: Reply, request_id: str) -> None:
        key = self._auth.authenticate(request, "messages")
        self._send_json(await self._messages.count(request.body, key), request_id, reply)

    def _list_models(self, request: Request, reply: Reply, request_id: str) -> None:
        self._optional_key(request)
        self._send_json(self._models.list(), request_id, reply)

    def _show_model(self, request: Request, reply: Reply, request_id: str) -> None:
        self._optional_key(request)
        name = unquote(request.path.removeprefix(f"{MODELS}/"))
        if name.endswith("/endpoints"):
            document = self._models.endpoints(name.removesuffix("/endpoints"))
        else:
            document = self._models.show(name)
        self._send_json(document, request_id, reply)

    def _openapi_json(self, request: Request, reply: Reply, request_id: str) -> None:
        reply.send(200, [JSON_TYPE, (b"x-request-id", request_id.encode())], self._openapi)

    def _optional_key(self, request: Request) -> None:
        """The catalogue is public, but a key that is given must be right."""
        if request.header(b"authorization") or request.header(API_KEY):
            self._auth.authenticate(request)

    # -- routing and errors

    def _endpoint(self, request: Request) -> Endpoint:
        methods: Mapping[str, Endpoint] | None = self._routes.get(request.path)
        if methods is None and request.path.startswith(f"{MODELS}/"):
            methods = {"GET": self._show_model}
        if methods is None and request.path.startswith(f"{RESPONSES}/"):
            methods = self._response_methods(request.path)
        if methods is None:
            raise NotFound(f"There is nothing at {request.path[:200]}.{self._hint(request.path)}")
        method = "GET" if request.method == "HEAD" else request.method
        endpoint = methods.get(method)
        if endpoint is None:
            allowed = [*methods, "HEAD"] if "GET" in methods else list(methods)
            raise MethodNotAllowed(
                f"{request.path[:200]} takes {', '.join(methods)}, not {request.method}.",
                allowed=allowed,
            )
        return endpoint

    def _response_methods(self, path: str) -> Mapping[str, Endpoint] | None:
        _, slash, what = path.removeprefix(f"{RESPONSES}/").partition("/")
        return self._below_responses.get(f"{RESPONSES}/{{id}}{slash}{what}")

    def _hint(self, path: str) -> str:
        return did_you_mean(path, self._routes) or f" The API lives under {BASE}."

    @staticmethod
    def _send_json(document: object, request_id: str, reply: Reply) -> None:
        body = msgspec.json.encode(document)
        reply.send(200, [JSON_TYPE, (b"x-request-id", request_id.encode())], body)

    def _refuse(self, error: ApiError, request_id: str, request: Request, reply: Reply) -> None:
        if not reply.started:  # else a stream has ended itself with an in-band error
            anthropic = request.path.startswith(MESSAGES)
            reply.send(*self._error_answer(error, request_id, anthropic=anthropic))

    def _error_answer(
        self, error: ApiError, request_id: str, *, anthropic: bool = False
    ) -> tuple[int, Headers, bytes]:
        self._metrics.error_answer(error)
        if anthropic:
            status, headers, body = render_anthropic_error(error, request_id)
            headers.append((b"request-id", request_id.encode()))
        else:
            status, headers, body = render_error(error)
        return status, [*headers, (b"x-request-id", request_id.encode())], body


def _last_part(path: str) -> str:
    return unquote(path.rpartition("/")[2])


def refuse_query(request: Request) -> None:
    """Raises UnsupportedParameter for what a GET asks for in its query."""
    if name := request.query.partition("=")[0]:
        raise UnsupportedParameter(f"'{name[:64]}' is not supported here.", param=name[:64])
