"""How many tokens a chat request is, as the engine that would answer it counts.

Exact or refused, never estimated: engines with a tokenizer endpoint apply their own chat
template and tokenizer to the body that they would be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from prime_inference.domain.errors import (
    CapacityExhausted,
    ModelNotFound,
    UpstreamFailure,
    UpstreamMalformed,
    UpstreamTimeout,
)
from prime_inference.domain.models import Deployment, EngineKind, Model
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.gateway.operations import Operation, unsupported
from prime_inference.gateway.upstream_errors import MAX_ERROR_BYTES, upstream_error
from prime_inference.ports.catalog import Catalog
from prime_inference.wire.http_client import HttpPool, Origin
from prime_inference.wire.resolver import Resolver

T = TypeVar("T")

COUNT_SECONDS = 10.0  # a million tokens take a second; more means the engine is stuck
CONNECT_SECONDS = 2.0
MAX_COUNTS = 8  # at a time; counting takes the engine's CPU, and clients ask before every turn
MAX_TOKENS_BYTES = 64 * 1024 * 1024  # engines send the tokens too: a million are 8 MB
RETRY_SECONDS = 1.0


class _Counted(Struct):
    """vLLM's answer."""

    count: int


class _Prompt(Struct):
    prompt: str


class _Tokens(Struct):
    tokens: list[int]


class TokenCounter:
    """Asks the deployments of a model, one after the other, until one has counted."""

    def __init__(self, catalog: Catalog, resolver: Resolver) -> None:
        self._catalog = catalog
        self._resolver = resolver
        self._pools: dict[str, HttpPool] = {}
        self._in_flight = 0
        self._ways: dict[EngineKind, Callable[[Operation, Deployment], Awaitable[int]]] = {
            "vllm": self._vllm,
            "llama.cpp": self._llama_cpp,
        }

    async def count(self, operation: Operation) -> int:
        """Raises ModelNotFound where no engine can tell, and the errors of upstreams."""
        deployments = self._able(operation)
        if self._in_flight >= MAX_COUNTS:
            raise CapacityExhausted(
                "Too many counts at a time. Try again shortly.", retry_after=RETRY_SECONDS
            )
        self._in_flight += 1
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await self._first(operation, deployments)
        except TimeoutError:
            raise UpstreamTimeout("The engine did not count in time.", clock="total") from None
        finally:
            self._in_flight -= 1

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _able(self, operation: Operation) -> list[Deployment]:
        model = self._model(operation)
        serving = [
            deployment
            for deployment in self._catalog.deployments(model.id)
            if deployment.engine in self._ways and operation.route in deployment.routes
        ]
        if not serving:
            raise ModelNotFound(
                f"{model.id} does not count tokens: its engine has no tokenizer endpoint.",
                param="model",
            )
        able = [each for each in serving if operation.missing(each) is None]
        if not able:
            name = operation.missing(serving[0])
            assert name is not None
            raise unsupported(name, model.id)
        return able

    def _model(self, operation: Operation) -> Model:
        model = self._catalog.find(operation.model)
        if model is None:
            known = [model.id for model in self._catalog.models()]
            raise ModelNotFound(
                f"The model '{operation.model}' does not exist."
                f"{did_you_mean(operation.model, known)}",
                param="model",
            )
        operation.check(model)
        return model

    async def _first(self, operation: Operation, deployments: list[Deployment]) -> int:
        *others, last = deployments
        for deployment in others:
            try:
                return await self._ways[deployment.engine](operation, deployment)
            except (UpstreamFailure, ModelNotFound):
                continue  # the next may be up, or have a tokenizer
        return await self._ways[last.engine](operation, last)

    async def _vllm(self, operation: Operation, deployment: Deployment) -> int:
        parameters = operation.parameters
        body: dict[str, Any] = {"model": deployment.upstream_model, **operation.content}
        body["add_generation_prompt"] = True
        if "tools" in parameters:
            body["tools"] = parameters["tools"]
        if "reasoning_effort" in parameters:  # chat requests hand it to the template
            body["chat_template_kwargs"] = {"reasoning_effort": parameters["reasoning_effort"]}
        encoded = msgspec.json.encode(body)
        return (await self._ask(deployment, "/tokenize", encoded, _Counted)).count

    async def _llama_cpp(self, operation: Operation, deployment: Deployment) -> int:
        body = operation.body(deployment)
        prompt = (await self._ask(deployment, "/apply-template", body, _Prompt)).prompt
        # as the engine treats a chat's prompt: with the model's own first token
        text = msgspec.json.encode({"content": prompt, "add_special": True, "parse_special": True})
        return len((await self._ask(deployment, "/tokenize", text, _Tokens)).tokens)

    async def _ask(self, deployment: Deployment, path: str, body: bytes, kind: type[T]) -> T:
        response = await self._pool(deployment).fetch(
            "POST", path, body, connect_seconds=CONNECT_SECONDS
        )
        try:
            if response.status in (404, 405, 501):
                raise ModelNotFound(
                    f"{deployment.model} does not count tokens: its engine has no tokenizer"
                    " endpoint.",
                    param="model",
                )
            if response.status != 200:
                error = await response.read(MAX_ERROR_BYTES)
                model = self._catalog.find(deployment.model)
                limit = model.context_tokens if model is not None else 0
                raise upstream_error(response.status, error, None, limit)
            return msgspec.json.decode(await response.read(MAX_TOKENS_BYTES), type=kind)
        except msgspec.MsgspecError:
            raise UpstreamMalformed("The engine's count is not what its API promises.") from None
        finally:
            response.close()

    def _pool(self, deployment: Deployment) -> HttpPool:
        """Connections to the engine's own paths, which lie beside those of OpenAI's API."""
        pool = self._pools.get(deployment.base_url)
        if pool is None:
            origin = Origin.parse(deployment.base_url)
            origin = replace(origin, prefix=origin.prefix.removesuffix("/v1"))
            headers = b"content-type: application/json\r\n"
            pool = HttpPool(origin, idle=0, headers=headers, resolver=self._resolver)
            self._pools[deployment.base_url] = pool
        return pool
