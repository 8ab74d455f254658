"""The part of the OpenAPI document that describes Responses and Messages."""

from __future__ import annotations

from typing import Any

import msgspec

from prime_inference.wire.anthropic import request as anthropic
from prime_inference.wire.openai.bounds import MAX_MESSAGES, MAX_TOOLS
from prime_inference.wire.responses import input_items, items, request

COUNT = {"type": "integer", "minimum": 0}
NULL = {"type": "null"}

ITEMS = (
    items.MessageItem,
    items.FunctionCallItem,
    items.FunctionOutputItem,
    items.ReasoningItem,
)

ANSWERS: dict[str, dict[str, Any]] = {
    "Response": {
        "type": "object",
        "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "response"},
            "created_at": COUNT,
            "expires_at": {**COUNT, "description": "Until when it is stored."},
            "status": {"enum": ["completed", "incomplete", "failed", "in_progress"]},
            "model": {"type": "string"},
            "output": {"type": "array", "items": {"type": "object"}},
            "usage": {"type": ["object", "null"]},
            "service_tier": {"enum": ["default", "flex"]},
        },
    },
    "DeletedResponse": {
        "type": "object",
        "required": ["id", "object", "deleted"],
        "properties": {"deleted": {"const": True}},
    },
    "InputItems": {
        "type": "object",
        "required": ["object", "data", "first_id", "last_id", "has_more"],
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": {"type": "object"}},
            "first_id": {"type": ["string", "null"]},
            "last_id": {"type": ["string", "null"]},
            "has_more": {"type": "boolean"},
        },
    },
    "AnthropicMessage": {
        "type": "object",
        "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"],
        "properties": {
            "id": {"type": "string"},
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "model": {"type": "string"},
            "content": {"type": "array", "items": {"type": "object"}},
            "stop_reason": {"enum": ["end_turn", "max_tokens", "tool_use", "refusal"]},
            "usage": {"type": "object", "required": ["input_tokens", "output_tokens"]},
        },
    },
    "TokenCount": {
        "type": "object",
        "required": ["input_tokens"],
        "properties": {"input_tokens": COUNT},
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
            "request_id": {"type": "string"},
        },
    },
}

ITEMS_QUERY: dict[str, dict[str, Any]] = {
    "limit": {
        "type": "integer",
        "minimum": 1,
        "maximum": input_items.MOST_ITEMS,
        "default": input_items.DEFAULT_ITEMS,
    },
    "order": {"enum": list(input_items.ORDERS), "default": "desc"},
    "after": {"type": "string"},
    "include[]": {"type": "array", "items": {"const": input_items.INCLUDABLE}},
}


def dialect_schemas(ref: str) -> dict[str, Any]:
    """Schemas of the requests, with `ref` as the template of references."""
    types = [request.ResponsesRequest, anthropic.MessagesRequest, anthropic.CountRequest]
    _, responses = msgspec.json.schema_components(
        [request.ResponsesRequest, request.FunctionTool, *ITEMS],
        ref_template=ref.replace("{name}", "Responses{name}"),
    )
    _, messages = msgspec.json.schema_components(
        [*types[1:], anthropic.Tool], ref_template=ref.replace("{name}", "Anthropic{name}")
    )
    _describe_responses(responses["ResponsesRequest"]["properties"], ref)
    for name in ("MessagesRequest", "CountRequest"):
        _describe_messages(messages[name]["properties"], ref)
    return {
        **{f"Responses{name}": schema for name, schema in responses.items()},
        **{f"Anthropic{name}": schema for name, schema in messages.items()},
    }


def _describe_responses(properties: dict[str, Any], ref: str) -> None:
    """What the decoder takes as raw JSON and looks at later, in full."""
    kinds = [{"$ref": ref.format(name=f"Responses{kind.__name__}")} for kind in ITEMS]
    several = {"type": "array", "items": {"anyOf": kinds}, "minItems": 1, "maxItems": MAX_MESSAGES}
    properties["input"] = {"anyOf": [{"type": "string"}, several]}
    properties["tools"] = _tools(ref.format(name="ResponsesFunctionTool"))
    properties["top_logprobs"] = {"enum": [0, None]}
    for name in request.REFUSED:
        properties[name] = NULL


def _describe_messages(properties: dict[str, Any], ref: str) -> None:
    properties["tools"] = _tools(ref.format(name="AnthropicTool"))
    for name in set(anthropic.REFUSED) & set(properties):
        properties[name] = NULL


def _tools(reference: str) -> dict[str, Any]:
    array = {"type": "array", "items": {"$ref": reference}, "maxItems": MAX_TOOLS}
    return {"anyOf": [array, NULL]}
