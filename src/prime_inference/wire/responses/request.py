"""`POST /responses`: the request, closed and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.wire.openai.bounds import MAX_TOOLS
from prime_inference.wire.openai.chat_request import (
    Effort,
    Opaque,
    Probability,
    ServiceTier,
    Temperature,
    TokenCount,
    ToolMode,
)
from prime_inference.wire.openai.decode import decode, decode_at
from prime_inference.wire.responses.items import Closed, Items

ToolName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]

REFUSED = (
    "access_programs", "background_options", "context_management", "conversation", "cyber",
    "image", "max_tool_calls", "moderation", "prompt", "prompt_cache_options",
    "prompt_cache_retention",
)  # fmt: skip
"""Fields of OpenAI's that nothing here can honour."""


class FunctionTool(Closed):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: Raw | UnsetType = UNSET
    strict: bool | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None


class NamedTool(Closed):
    type: Literal["function"]
    name: str


class ToolChoice(Closed):
    """A function by its name, or the functions that may be called at this turn."""

    type: Literal["function", "allowed_tools"]
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = None


class TextFormat(Closed):
    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema: Raw | UnsetType = UNSET
    strict: bool | None = None


class Text(Closed):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Closed):
    """`summary: auto` asks for what there is: the reasoning itself, which is in the answer."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class StreamOptions(Closed):
    include_obfuscation: Literal[False] | None = None


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),  # OpenAI's limits
]


class ResponsesRequest(Closed):
    """All of OpenAI's parameters; a parameter given as null is one not given."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    input: str | Items
    access_programs: Any = None
    background: Literal[False] | None = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    cyber: Any = None
    image: Any = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    max_tool_calls: Any = None
    metadata: Metadata | None = None
    moderation: Any = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Opaque | None = None
    prompt: Any = None
    prompt_cache_key: Opaque | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning: Reasoning | None = None
    safety_identifier: Opaque | None = None
    service_tier: ServiceTier | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    text: Text | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    tools: Annotated[list[Raw], Meta(max_length=MAX_TOOLS)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    top_p: Probability | None = None
    truncation: Literal["disabled"] | None = None
    user: Opaque | None = None

    @property
    def stored(self) -> bool:
        """Whether the response is to be kept: so unless `store` is false."""
        return self.store is not False

    @property
    def encrypted_reasoning(self) -> bool:
        """Whether reasoning items are to carry themselves in `encrypted_content` too."""
        return "reasoning.encrypted_content" in (self.include or ())


class _ToolKind(msgspec.Struct):
    type: str = ""


_decoder = msgspec.json.Decoder(ResponsesRequest)
_tool = msgspec.json.Decoder(FunctionTool)
_tool_kind = msgspec.json.Decoder(_ToolKind)


def decode_responses_request(body: bytes) -> ResponsesRequest:
    """Decode and check what the types cannot say. Raises InvalidRequest."""
    request = decode(_decoder, body)
    for name in REFUSED:
        if getattr(request, name) is not None:
            raise UnsupportedParameter(f"'{name}' is not supported here.", param=name)
    if request.top_logprobs:
        raise UnsupportedParameter("'top_logprobs' is not supported here.", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    return request


def decode_tools(raw: list[Raw]) -> list[FunctionTool]:
    """Raises InvalidRequest, and UnsupportedParameter for a tool that is no function."""
    return [_decode_tool(tool, f"tools[{index}]") for index, tool in enumerate(raw)]


def _decode_tool(raw: Raw, param: str) -> FunctionTool:
    try:
        kind = _tool_kind.decode(raw).type
    except (ValueError, RecursionError):
        raise InvalidRequest(f"'{param}' is not a tool.", param=param) from None
    if kind not in ("", "function"):
        raise UnsupportedParameter(
            f"'{param}.type': tools of type '{kind[:64]}' are not supported here; functions are.",
            param=f"{param}.type",
        )
    return decode_at(_tool, raw, param)
