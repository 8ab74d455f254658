"""The public API as an OpenAPI 3.1 document, its request schemas derived from the wire types."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from prime_inference import __version__
from prime_inference.gateway.account_openapi import ANSWERS as ACCOUNT_ANSWERS
from prime_inference.gateway.account_openapi import QUERIES, REQUIRED
from prime_inference.gateway.dialects_openapi import ANSWERS as DIALECT_ANSWERS
from prime_inference.gateway.dialects_openapi import ITEMS_QUERY, dialect_schemas
from prime_inference.wire.openai.bounds import MAX_INPUTS, MAX_PROMPTS
from prime_inference.wire.openai.chat_request import ChatRequest
from prime_inference.wire.openai.completion_request import CompletionRequest, EmbeddingRequest

REF = "#/components/schemas/{name}"

ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "No API key, or one that is not valid.",
    "402": "What the request could cost does not fit into a budget.",
    "403": "The key may not do this, or may not bill that team.",
    "404": "No such model.",
    "405": "The path takes another method.",
    "413": "The body is too large.",
    "414": "The URL is too long.",
    "429": "A limit is reached, or there is no room for a flex request; see Retry-After.",
    "431": "The headers are too large.",
    "500": "A defect of the gateway.",
    "501": "No such HTTP method.",
    "502": "The model's engine failed, or cannot be reached.",
    "503": "No capacity now; see Retry-After.",
    "504": "The model's engine did not answer in time.",
}

COUNT = {"type": "integer", "minimum": 0}

TEXT = {"type": "string", "minLength": 1}
TOKEN_IDS = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
}

ANSWERS: dict[str, dict[str, Any]] = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code", "metadata"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": "string"},
                    "metadata": {"type": "object", "required": ["error_type"]},
                },
            }
        },
    },
    "Usage": {
        "type": "object",
        "required": ["prompt_tokens", "total_tokens"],
        "properties": {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": {"type": "object", "properties": {"cached_tokens": COUNT}},
            "completion_tokens_details": {
                "type": "object",
                "properties": {"reasoning_tokens": COUNT},
            },
        },
    },
    "Answer": {
        "type": "object",
        "required": ["id", "object", "created", "model", "choices"],
        "properties": {
            "id": {"type": "string"},
            "object": {"enum": ["chat.completion", "text_completion"]},
            "created": COUNT,
            "model": {"type": "string"},
            "choices": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["index", "finish_reason"],
                    "properties": {
                        "index": COUNT,
                        "message": {"type": "object"},
                        "text": {"type": "string"},
                        "finish_reason": {"type": "string"},
                    },
                },
            },
            "usage": {"$ref": REF.format(name="Usage")},
            "service_tier": {"enum": ["default", "flex"]},
        },
    },
    "Embeddings": {
        "type": "object",
        "required": ["object", "data", "model", "usage"],
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"type": "object"}},
            "model": {"type": "string"},
            "usage": {"$ref": REF.format(name="Usage")},
        },
    },
    "Model": {
        "type": "object",
        "required": ["id", "object", "created", "context_length", "pricing"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "model"},
            "created": COUNT,
            "context_length": COUNT,
            "pricing": {"type": "object"},
        },
    },
    "Models": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"$ref": REF.format(name="Model")}},
        },
    },
    "OpenApi": {"type": "object", "required": ["openapi", "info", "paths", "components"]},
    "Endpoints": {
        "type": "object",
        "required": ["data"],
        "properties": {"data": {"type": "object", "required": ["id", "endpoints"]}},
    },
}


def openapi_document(*, accounts: bool) -> dict[str, Any]:
    """The document served at `/api/v1/openapi.json`; `accounts` says whether there are some."""
    account_answers = ACCOUNT_ANSWERS if accounts else {}
    types = [ChatRequest, CompletionRequest, EmbeddingRequest]
    _, requests = msgspec.json.schema_components(types, ref_template=REF)
    # for the decoder these are lists of anything, since it tells no two kinds of list apart
    requests["CompletionRequest"]["properties"]["prompt"] = _texts_or_ids(MAX_PROMPTS)
    requests["EmbeddingRequest"]["properties"]["input"] = _texts_or_ids(MAX_INPUTS)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Prime Inference", "version": __version__},
        "servers": [{"url": "/api/v1"}],
        "security": [{"key": []}, {"x-api-key": []}],
        "paths": {
            "/chat/completions": _post(
                "createChatCompletion", "ChatRequest", "Answer", stream=True
            ),
            "/completions": _post("createCompletion", "CompletionRequest", "Answer", stream=True),
            "/embeddings": _post("createEmbedding", "EmbeddingRequest", "Embeddings"),
            **_dialect_paths(),
            "/openapi.json": _get("showOpenApi", "OpenApi"),
            "/models": _get("listModels", "Models"),
            "/models/{author}/{slug}": _get("showModel", "Model", "author", "slug"),
            "/models/{author}/{slug}/endpoints": _get(
                "listEndpoints", "Endpoints", "author", "slug"
            ),
            **(_account_paths() if accounts else {}),
        },
        "components": {
            "schemas": {
                **requests,
                **dialect_schemas(REF),
                **ANSWERS,
                **DIALECT_ANSWERS,
                **account_answers,
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _dialect_paths() -> dict[str, Any]:
    stored = _get("showResponse", "Response", "id", public=False)
    removal = _get("deleteResponse", "DeletedResponse", "id", public=False)["get"]
    cancel = _get("cancelResponse", "Response", "id", public=False)["get"]
    items = _get("listInputItems", "InputItems", "id", public=False)
    items["get"]["parameters"] += _query(ITEMS_QUERY)
    return {
        "/responses": _post("createResponse", "ResponsesResponsesRequest", "Response", stream=True),
        "/responses/{id}": {**stored, "delete": removal},
        "/responses/{id}/cancel": {"post": cancel},
        "/responses/{id}/input_items": items,
        "/messages": _post(
            "createMessage",
            "AnthropicMessagesRequest",
            "AnthropicMessage",
            stream=True,
            anthropic=True,
        ),
        "/messages/count_tokens": _post(
            "countTokens", "AnthropicCountRequest", "TokenCount", anthropic=True
        ),
    }


def _account_paths() -> dict[str, Any]:
    paths = {}
    for path, (operation, answer, query) in QUERIES.items():
        described = paths[path] = _get(operation, answer, public=False)
        described["get"]["parameters"] = _query(query, REQUIRED)
    return paths


def _query(
    schemas: Mapping[str, dict[str, Any]], required: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Parameters of a query, by name."""
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in schemas.items()
    ]


def _texts_or_ids(limit: int) -> dict[str, Any]:
    """A text, token ids, or up to `limit` of either."""
    several = {"type": "array", "minItems": 1, "maxItems": limit}
    return {"anyOf": [TEXT, TOKEN_IDS, {**several, "items": TEXT}, {**several, "items": TOKEN_IDS}]}


def _post(
    operation: str,
    request: str,
    answer: str,
    *,
    stream: bool = False,
    anthropic: bool = False,
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": REF.format(name=answer)}}}
    if stream:
        content["text/event-stream"] = {}  # events: docs/dialects.md
    body = {"application/json": {"schema": {"$ref": REF.format(name=request)}}}
    return {
        "post": {
            "operationId": operation,
            "requestBody": {"required": True, "content": body},
            "responses": {
                "200": {"description": "The answer.", "content": content},
                **_errors(anthropic=anthropic),
            },
        }
    }


def _get(operation: str, answer: str, *parameters: str, public: bool = True) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REF.format(name=answer)}}}
    return {
        "get": {
            "operationId": operation,
            "security": [*([{}] if public else []), {"key": []}, {"x-api-key": []}],
            "parameters": [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in parameters
            ],
            "responses": {"200": {"description": "Found.", "content": content}, **_errors()},
        }
    }


def _errors(*, anthropic: bool = False) -> dict[str, Any]:
    schema, overloaded = ("AnthropicError", "529") if anthropic else ("Error", "503")
    content = {"application/json": {"schema": {"$ref": REF.format(name=schema)}}}
    return {
        overloaded if code == "503" else code: {"description": text, "content": content}
        for code, text in ERRORS.items()
    }
