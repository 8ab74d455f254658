"""What the mock engine reads of a request; fields it has no use for are left alone."""

from __future__ import annotations

from typing import Any

import msgspec

from prime_inference.engines.mock.text import Prompt, as_prompt, chat_prompt

Inputs = str | list[str | int | list[int]]
"""A text, token ids, or several of either."""


def input_prompts(inputs: Inputs) -> list[Prompt]:
    """Each prompt of `inputs`."""
    if isinstance(inputs, str):
        return [as_prompt(inputs)]
    ids = [item for item in inputs if isinstance(item, int)]
    if ids:
        return [as_prompt(ids)]
    return [as_prompt(item) for item in inputs if not isinstance(item, int)]


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(msgspec.Struct):
    """The fields that chat completions and completions share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    return_token_ids: bool = False

    @property
    def limit(self) -> int | None:
        """Most tokens of one choice."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def counts_along(self) -> bool:
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class Function(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct):
    function: Function


class JsonSchema(msgspec.Struct):
    definition: dict[str, Any] = msgspec.field(name="schema", default_factory=dict)


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema = msgspec.field(default_factory=JsonSchema)


class ChatRequest(GenerationRequest, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    tools: list[Tool] | None = None
    tool_choice: str | Tool | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def prompts(self) -> list[Prompt]:
        return [chat_prompt(self.messages)]

    @property
    def alternatives(self) -> int | None:
        """Alternatives to report for each token; None: no logprobs at all."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prefilled(self) -> bool:
        return bool(self.messages) and self.messages[-1].get("role") == "assistant"


class CompletionRequest(GenerationRequest, kw_only=True):
    """`POST /v1/completions`."""

    prompt: Inputs
    logprobs: int | None = None

    def prompts(self) -> list[Prompt]:
        return input_prompts(self.prompt)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    @property
    def prefilled(self) -> bool:
        return False


class EmbeddingRequest(msgspec.Struct):
    """`POST /v1/embeddings`."""

    model: str
    input: Inputs
    dimensions: int | None = None
    encoding_format: str = "float"
