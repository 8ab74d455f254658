"""The response object, and the output items that blocks become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import cost_of
from prime_inference.wire.openai.blocks import Block
from prime_inference.wire.responses.reasoning import sealed
from prime_inference.wire.responses.request import ResponsesRequest

PREFIXES = {"reasoning": "rs", "text": "msg", "refusal": "msg", "call": "fc"}

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons that leave a response incomplete, in OpenAI's words."""


class ResponseHead:
    """What a response says of its request; the same in every event of it."""

    def __init__(
        self,
        request: ResponsesRequest,
        *,
        answer_id: str,
        created: int,
        expires_at: int | None = None,
    ) -> None:
        self.id = f"resp_{answer_id}"
        self._answer_id = answer_id
        self._sealed = request.encrypted_reasoning
        text, reasoning = request.text, request.reasoning
        self.fields: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": created,
            "background": False,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": None,
            "metadata": request.metadata or {},
            "model": request.model,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {
                "effort": reasoning and reasoning.effort,
                "summary": reasoning and reasoning.summary,
            },
            "safety_identifier": request.safety_identifier,
            "service_tier": "flex" if request.service_tier == "flex" else "default",
            "store": request.stored,
            "temperature": request.temperature,
            "text": {
                "format": (text and text.format) or {"type": "text"},
                "verbosity": text and text.verbosity,
            },
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": 0,
            "top_p": request.top_p,
            "truncation": "disabled",
            "user": request.user,
        }
        if request.stored and expires_at is not None:
            self.fields["expires_at"] = expires_at

    def not_stored(self) -> None:
        """Say what came of the wish to store it: the answer is whole all the same."""
        self.fields["store"] = False
        self.fields.pop("expires_at", None)

    def item_id(self, block: Block) -> str:
        return f"{PREFIXES[block.kind]}_{self._answer_id}_{block.index}"

    def call_id(self, block: Block) -> str:
        """The id that a tool's output names; ours where the engine gave none."""
        return block.id or f"call_{self._answer_id}_{block.index}"

    def item(self, block: Block, status: str, text: str) -> dict[str, Any]:
        """An output item; `text` is what has been said in its block."""
        item: dict[str, Any] = {"id": self.item_id(block), "type": block.kind, "status": status}
        if block.kind == "call":
            return {
                **item,
                "type": "function_call",
                "call_id": self.call_id(block),
                "name": block.name,
                "arguments": text,
            }
        parts = [part(block, text)] if status != "in_progress" or text else []
        if block.kind == "reasoning":
            item |= {"summary": [], "content": parts}
            if self._sealed:
                item["encrypted_content"] = sealed(text) if parts else None
            return item
        return {**item, "type": "message", "role": "assistant", "content": parts}

    def response(
        self,
        status: str,
        output: Sequence[dict[str, Any]],
        *,
        usage: Usage | None = None,
        cost: object = None,
        incomplete: str | None = None,
        error: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """The whole object."""
        return {
            **self.fields,
            "status": status,
            "error": error,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "output": output,
            "usage": None if usage is None or usage.source == "none" else usage_object(usage, cost),
        }


def part(block: Block, text: str) -> dict[str, Any]:
    """The one part of a message or a reasoning item."""
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    if block.kind == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage_object(usage: Usage, cost: object = None) -> dict[str, Any]:
    """Token counts as the Responses API writes them, and the cost in dollars."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        **cost_of(cost),
    }
