"""`POST /chat/completions`: the request, closed and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.wire.openai.bounds import (
    MAX_CHOICES,
    MAX_LOGIT_BIASES,
    MAX_MESSAGES,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    SchemaBounds,
)
from prime_inference.wire.openai.decode import decode

Temperature = Annotated[float, Meta(ge=0, le=2)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenCount = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)]
LogitBias = Annotated[
    dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_LOGIT_BIASES)
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ToolMode = Literal["none", "auto", "required"]
Name = Annotated[str, Meta(max_length=64)]
Opaque = Annotated[str, Meta(max_length=512)]  # identifiers that the caller makes up


class _Closed(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A type that refuses fields it does not know and writes no field that was not set.

    Types whose `type` may be left out write it all the same: engines ask for it.
    """


class TextPart(_Closed, tag_field="type", tag="text"):
    text: str


class ImageUrl(_Closed):
    url: str
    detail: Literal["auto", "low", "high"] | UnsetType = UNSET


class ImagePart(_Closed, tag_field="type", tag="image_url"):
    image_url: ImageUrl


class InputAudio(_Closed):
    data: str
    format: Literal["wav", "mp3"]


class AudioPart(_Closed, tag_field="type", tag="input_audio"):
    input_audio: InputAudio


class FilePart(_Closed, tag_field="type", tag="file"):
    file: dict[str, str]


class RefusalPart(_Closed, tag_field="type", tag="refusal"):
    refusal: str


ContentPart = TextPart | ImagePart | AudioPart | FilePart
AssistantPart = TextPart | RefusalPart


class FunctionCall(_Closed):
    name: str
    arguments: str
    parsed_arguments: Any = UNSET  # OpenAI's SDK plays back what it has read

    def __post_init__(self) -> None:
        self.parsed_arguments = UNSET


class ToolCall(_Closed, omit_defaults=False):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | UnsetType = UNSET  # clients that replay stream deltas leave it in

    def __post_init__(self) -> None:
        self.index = UNSET


class _Message(_Closed, tag_field="role"):
    pass


class SystemMessage(_Message, tag="system"):
    content: str | list[TextPart]
    name: Name | UnsetType | None = UNSET


class DeveloperMessage(_Message, tag="developer"):
    content: str | list[TextPart]
    name: Name | UnsetType | None = UNSET


class UserMessage(_Message, tag="user"):
    content: str | list[ContentPart]
    name: Name | UnsetType | None = UNSET


class AssistantMessage(_Message, tag="assistant"):
    """A turn of the model's. `annotations`, `audio`, `parsed`: as SDKs play them back."""

    content: str | list[AssistantPart] | None = None
    name: Name | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    annotations: list[Any] | UnsetType | None = UNSET
    audio: UnsetType | None = UNSET
    function_call: UnsetType | None = UNSET
    parsed: Any = UNSET

    def __post_init__(self) -> None:
        if not self.tool_calls:
            self.tool_calls = UNSET
        self.annotations = self.audio = self.function_call = self.parsed = UNSET


class ToolMessage(_Message, tag="tool"):
    content: str | list[TextPart]
    tool_call_id: str
    name: Name | UnsetType | None = UNSET


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionDefinition(_Closed):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: str | UnsetType | None = UNSET
    parameters: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class Tool(_Closed, omit_defaults=False):
    function: FunctionDefinition
    type: Literal["function"] = "function"


class NamedFunction(_Closed):
    name: str


class NamedToolChoice(_Closed, tag_field="type", tag="function"):
    function: NamedFunction


class AllowedTools(_Closed):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedToolChoice], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(_Closed, tag_field="type", tag="allowed_tools"):
    """Of the tools, those that may be called at this turn; the prompt has them all."""

    allowed_tools: AllowedTools

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.function.name for tool in self.allowed_tools.tools)


class JsonSchema(_Closed, rename={"schema_": "schema"}):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | UnsetType | None = UNSET
    schema_: Raw | UnsetType = UNSET
    strict: bool | UnsetType | None = UNSET


class TextFormat(_Closed, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(_Closed, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(_Closed, tag_field="type", tag="json_schema"):
    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class StreamOptions(_Closed):
    include_usage: bool = False
    include_obfuscation: bool = False


class UsageOptions(_Closed):
    """OpenRouter's `usage: {include: true}`, a no-op since usage is always there."""

    include: bool = False


ServiceTier = Literal["auto", "default", "flex"]
"""Of OpenAI's tiers: as everybody, or cheaper and after everybody (docs/billing.md)."""


class ChatRequest(_Closed):
    """All of OpenAI's chat parameters, and `top_k`, `min_p`, `repetition_penalty`.

    A parameter given as null is a parameter not given.
    """

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    audio: Any = None
    frequency_penalty: Penalty | None = None
    function_call: Any = None
    functions: Any = None
    logit_bias: LogitBias | None = None
    logprobs: bool | None = None
    max_completion_tokens: TokenCount | None = None
    max_tokens: TokenCount | None = None
    metadata: Any = None
    min_p: Probability | None = None
    modalities: list[str] | None = None
    moderation: Any = None
    n: Choices | None = None
    parallel_tool_calls: bool | None = None
    prediction: Any = None
    presence_penalty: Penalty | None = None
    prompt_cache_key: Opaque | None = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Effort | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    response_format: ResponseFormat | None = None
    safety_identifier: Opaque | None = None
    seed: Seed | None = None
    service_tier: ServiceTier | None = None
    stop: Stops | None = None
    store: Literal[False] | bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    tool_choice: ToolMode | NamedToolChoice | AllowedToolsChoice | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    top_p: Probability | None = None
    usage: UsageOptions | None = None
    user: Opaque | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    web_search_options: Any = None

    @property
    def token_limit(self) -> int | None:
        """The answer's length limit, under its new name or its old one."""
        return self.max_completion_tokens or self.max_tokens


_decoder = msgspec.json.Decoder(ChatRequest)


def decode_chat_request(body: bytes, schemas: SchemaBounds) -> ChatRequest:
    """Decode and check what the types cannot say. Raises InvalidRequest."""
    request = decode(_decoder, body)
    check_chat_request(request, schemas)
    return request


def check_chat_request(request: ChatRequest, schemas: SchemaBounds) -> None:
    """Check what the types cannot say. Raises InvalidRequest."""
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequest(
            "'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs"
        )
    limits = (request.max_tokens, request.max_completion_tokens)
    if None not in limits and limits[0] != limits[1]:
        raise InvalidRequest(
            "'max_tokens' and 'max_completion_tokens' are two names of one limit"
            " and were given different values.",
            param="max_tokens",
        )
    if request.tools or request.tool_choice is not None:
        _check_tools(request, schemas)
    if isinstance(request.response_format, JsonSchemaFormat):
        schema = request.response_format.json_schema.schema_
        if schema is not UNSET:
            schemas.check(schema, "response_format.json_schema.schema")


def _check_tools(request: ChatRequest, schemas: SchemaBounds) -> None:
    names: set[str] = set()
    for index, tool in enumerate(request.tools or ()):
        if tool.function.name in names:
            raise InvalidRequest(
                f"Two tools are named '{tool.function.name}'.",
                param=f"tools[{index}].function.name",
            )
        names.add(tool.function.name)
        if tool.function.parameters is not UNSET:
            schemas.check(tool.function.parameters, f"tools[{index}].function.parameters")
    _check_choice(request.tool_choice, names)


def _check_choice(
    choice: ToolMode | NamedToolChoice | AllowedToolsChoice | None, names: set[str]
) -> None:
    if choice in ("auto", "required") and not names:
        raise InvalidRequest(
            "'tool_choice' is only allowed when 'tools' are given.", param="tool_choice"
        )
    if isinstance(choice, NamedToolChoice):
        _check_name(choice.function.name, names, "tool_choice.function.name")
    elif isinstance(choice, AllowedToolsChoice):
        for index, name in enumerate(choice.names):
            at = f"tool_choice.allowed_tools.tools[{index}].function.name"
            _check_name(name, names, at)


def _check_name(name: str, names: set[str], param: str) -> None:
    if name not in names:
        hint = did_you_mean(name, names)
        raise InvalidRequest(
            f"'tool_choice' names a function that is not among 'tools'.{hint}", param=param
        )
