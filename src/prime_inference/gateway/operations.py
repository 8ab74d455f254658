"""What a client asked for, in the form every attempt needs.

An operation names the parameters that a deployment must honour, and writes the body for
the deployment that was chosen. A parameter at the value that changes nothing (`n: 1`,
`store: false`) asks for nothing and is not sent.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.domain.models import Deployment, EngineKind, Model
from prime_inference.domain.pools import FLEX, SERVERLESS
from prime_inference.gateway.toolcalls.answer import AnswerTools
from prime_inference.gateway.toolcalls.constrain import constrain
from prime_inference.gateway.toolcalls.request import RequestTools
from prime_inference.wire.openai.bounds import alternatives, unenforced
from prime_inference.wire.openai.calls import ANY_CALLS, CallRules
from prime_inference.wire.openai.chat_request import (
    AllowedToolsChoice,
    AudioPart,
    ChatRequest,
    FilePart,
    ImagePart,
    JsonSchemaFormat,
    TextFormat,
    UserMessage,
)
from prime_inference.wire.openai.completion_request import CompletionRequest, EmbeddingRequest
from prime_inference.wire.openai.stream import Shape

OWN = frozenset({
    "model", "messages", "prompt", "input", "stream", "stream_options", "usage", "user",
    "safety_identifier", "prompt_cache_key", "max_tokens", "max_completion_tokens", "service_tier",
})  # fmt: skip
"""Fields that the gateway reads itself; engines need no word of them."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "store": (False,),
    "echo": (False,),
    "logprobs": (False,),
    "encoding_format": ("float",),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "suffix": ("",),
    "modalities": (["text"],),
    "tools": ([],),
    "logit_bias": ({},),
    "stop": ([],),
}
"""Values that ask for what happens anyway."""

OTHER_SHAPE: dict[tuple[EngineKind, str], tuple[str, ...]] = {
    ("llama.cpp", "completions"): ("logprobs",),  # answers in the shape of chat completions
}
"""Parameters that an engine honours on one route but answers in another API's shape."""

DROPS_NAMES: frozenset[EngineKind] = frozenset({"llama.cpp"})
"""Engines whose templates never see a message's `name`."""

COUNT_AS_THEY_GO: frozenset[EngineKind] = frozenset({"vllm", "dynamo"})
"""Engines that count with every event if asked to: what is known when an answer breaks off."""

OBJECTS_ONLY = frozenset({"msg_"})
"""Dialects in which a call's arguments are an object, not text, by their answers' ids."""

IGNORES_KEYWORDS = frozenset({"llama.cpp"})
"""Engines that leave out of a schema what their grammar cannot say, without a word."""

COUNTS_ONE_PROMPT = frozenset({"llama.cpp"})
"""Engines whose usage is that of the first prompt of several: nobody could say what was used."""

_TOLD_TIERS = {None: "", "auto": "default", "default": "default", "flex": FLEX}

IMAGE_HEADS = frozenset(
    f"data:image/{kind};base64" for kind in ("png", "jpeg", "jpg", "gif", "webp")
)
"""How an image begins. SVG is none: who draws it may fetch what it names."""

REPLACED_BY = {
    "functions": "Use 'tools' instead.",
    "function_call": "Use 'tool_choice' instead.",
}

_encoder = msgspec.json.Encoder()


class Operation(Struct, frozen=True, gc=False):
    """One request on one route. `parameters` are those an engine must honour, with values."""

    route: str  # the path under a deployment's base URL, e.g. chat/completions
    shape: Shape
    model: str
    stream: bool
    include_usage: bool
    choices: int
    inputs: int  # prompts of an embeddings request
    token_limit: int | None
    parameters: dict[str, Any]
    content: dict[str, Any]  # messages, prompt or input
    schema_alternatives: int  # values and branches of the answer's schema
    check: Callable[[Model], None]  # raises InvalidRequest for what this model cannot take
    session: str = ""  # what the client calls the conversation that it belongs to
    id_prefix: str = "cmpl-"  # of the id that the client sees
    loose_keyword: str = ""  # in a strict schema of the answer, that no grammar enforces
    message_name: str = ""  # path of the first message's name, where one has any
    tools: RequestTools | None = None
    cache_salt: str | None = None  # who has another one shares no prefix cache with it
    service_tier: str = ""  # as the answer tells it; empty: the client did not ask

    @property
    def flex(self) -> bool:
        """Whether it is served after everybody else, at the price's batch discount."""
        return self.service_tier == FLEX

    @property
    def pool(self) -> str:
        """Whose slots it gets, unless it gets reserved ones."""
        return FLEX if self.flex else SERVERLESS

    @property
    def alternatives(self) -> int | None:
        """Alternatives of each token in a chat's logprobs; None: no logprobs are asked for."""
        if self.shape == "text" or "logprobs" not in self.parameters:
            return None
        count: int = self.parameters.get("top_logprobs", 0)
        return count

    def streams_from(self, deployment: Deployment) -> bool:
        """Whether the deployment is asked for a stream, whatever the client asked for.

        llama.cpp notices that a client has left only where it writes to him.
        """
        return self.stream or (deployment.engine == "llama.cpp" and self.route != "embeddings")

    def body(self, deployment: Deployment) -> bytes:
        """The request that this deployment is sent."""
        stream = self.streams_from(deployment)
        body: dict[str, Any] = {"model": deployment.upstream_model, **self.content}
        body.update(self.parameters)
        if deployment.tool_parser != "upstream" and self.shape == "chat":
            constrain(body, self.tools, deployment.tool_parser, deployment.engine)
        if self.cache_salt is not None and deployment.engine == "vllm":
            body["cache_salt"] = self.cache_salt
        if self.token_limit is not None:
            body["max_tokens"] = self.token_limit
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
            if deployment.engine == "llama.cpp":
                body["timings_per_token"] = True  # an exact count when the client leaves
                # it looks for a client that left only when it writes: let it write in prefill
                body["return_progress"] = True
                if "logprobs" in body:  # without it 20 come, and with 0 none of the tokens' own
                    body.setdefault("top_logprobs", 1)
            elif deployment.engine in COUNT_AS_THEY_GO:
                body["stream_options"]["continuous_usage_stats"] = True
        return _encoder.encode(body)

    @property
    def call_rules(self) -> CallRules:
        """What is asked of calls where no tools were offered."""
        return CallRules(objects=True) if self.id_prefix in OBJECTS_ONLY else ANY_CALLS

    def answer_tools(self, deployment: Deployment) -> AnswerTools | None:
        """How an attempt on this deployment finds tool calls; None if there are no tools."""
        return None if self.tools is None else AnswerTools(self.tools, deployment)

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        stop = self.parameters.get("stop") or []
        return [stop] if isinstance(stop, str) else stop

    @property
    def asks_nothing_special(self) -> bool:
        """Whether every deployment of the route can serve it."""
        return not self.parameters and not self.message_name and self.choices == 1

    def missing(self, deployment: Deployment) -> str | None:
        """The first parameter that this deployment does not honour, for `unsupported`."""
        other_shape = OTHER_SHAPE.get((deployment.engine, self.route), ())
        for name in self.parameters:
            if name not in deployment.parameters or name in other_shape:
                return name
        if self.message_name and deployment.engine in DROPS_NAMES:
            return self.message_name
        if self.choices > 1 and deployment.engine in COUNTS_ONE_PROMPT:
            return "prompt"
        if self.loose_keyword and deployment.engine in IGNORES_KEYWORDS:
            return f"response_format.json_schema.schema ({self.loose_keyword}, strict)"
        if self.schema_alternatives > deployment.schema_alternatives:
            most = deployment.schema_alternatives
            return f"response_format.json_schema.schema (more than {most} alternatives)"
        if self.tools is not None and deployment.tool_parser != "upstream":
            return self.tools.missing(self.parameters, deployment)
        return None


def unsupported(name: str, model: str) -> UnsupportedParameter:
    """The refusal of a parameter; what follows the first space of `name` says what of it."""
    param, _, detail = name.partition(" ")
    hint = REPLACED_BY.get(param, "Leave it out, or choose a model that supports it.")
    what = f"'{param}' {detail}".rstrip()
    return UnsupportedParameter(f"{what} is not supported by {model}. {hint}", param=param)


def chat_operation(
    request: ChatRequest, session: str = "", id_prefix: str = "chatcmpl-"
) -> Operation:
    prompts = _prompt_count(request.n)
    parameters = _chat_fields.of(request)
    if isinstance(request.response_format, TextFormat):
        parameters.pop("response_format", None)
    if not request.tools:
        parameters.pop("tool_choice", None)
        parameters.pop("parallel_tool_calls", None)
    tools = RequestTools(request, objects=id_prefix in OBJECTS_ONLY) if request.tools else None
    if isinstance(request.tool_choice, AllowedToolsChoice) and tools is not None:
        # engines do not know this choice; where the gateway writes the prompt, it has all tools
        parameters["tools"] = tools.callable
        parameters["tool_choice"] = request.tool_choice.allowed_tools.mode
    schema_alternatives, loose_keyword = _answer_schema(request)
    return Operation(
        route="chat/completions",
        shape="chat",
        model=request.model,
        stream=bool(request.stream),
        include_usage=_include_usage(request),
        choices=prompts,
        inputs=0,
        token_limit=request.token_limit,
        parameters=parameters,
        content={"messages": request.messages},
        schema_alternatives=schema_alternatives,
        loose_keyword=loose_keyword,
        check=lambda model: _check_chat(request, model),
        session=session or request.prompt_cache_key or "",
        id_prefix=id_prefix,
        message_name=_message_name(request),
        tools=tools,
        service_tier=_TOLD_TIERS[request.service_tier],
    )


def completion_operation(request: CompletionRequest, session: str = "") -> Operation:
    prompts = _list_length(request.prompt)
    if prompts > 1 and request.stream:
        raise InvalidRequest("A streamed completion takes one prompt.", param="prompt")
    return Operation(
        route="completions",
        shape="text",
        model=request.model,
        stream=bool(request.stream),
        include_usage=_include_usage(request),
        choices=prompts * _prompt_count(request.n),
        inputs=0,
        token_limit=request.token_limit,
        parameters=_completion_fields.of(request),
        content={"prompt": request.prompt},
        schema_alternatives=0,
        check=lambda model: _check_limit(request.token_limit, model, "max_tokens"),
        session=session or request.prompt_cache_key or "",
        service_tier=_TOLD_TIERS[request.service_tier],
    )


def embedding_operation(request: EmbeddingRequest) -> Operation:
    return Operation(
        route="embeddings",
        shape="text",
        model=request.model,
        stream=False,
        include_usage=False,
        choices=1,
        inputs=_list_length(request.input),
        token_limit=None,
        parameters=_embedding_fields.of(request),
        content={"input": request.input},
        schema_alternatives=0,
        check=lambda model: None,
    )


class _EngineFields:
    """Reads what a request sets for the engine: neither ours, nor neutral, nor null."""

    def __init__(
        self, request_type: type[Struct], neutral: Mapping[str, tuple[object, ...]] = NEUTRAL
    ) -> None:
        self._neutral = neutral
        self._names = [name for name in request_type.__struct_fields__ if name not in OWN]
        self._values = attrgetter(*self._names)
        self._nothing = (None,) * len(self._names)

    def of(self, request: Struct) -> dict[str, Any]:
        values = self._values(request)
        if values == self._nothing:
            return {}
        neutral = self._neutral
        return {
            name: value
            for name, value in zip(self._names, values, strict=True)
            if value is not None and value not in neutral.get(name, ())
        }


_chat_fields = _EngineFields(ChatRequest)
_completion_fields = _EngineFields(
    CompletionRequest,
    {**NEUTRAL, "logprobs": ()},  # 0 asks for the tokens' own, and equals False
)
_embedding_fields = _EngineFields(EmbeddingRequest)


def _answer_schema(request: ChatRequest) -> tuple[int, str]:
    """Alternatives of the schema that the answer must have, and what it asks, if it is strict,
    that a grammar does not see to."""
    if not isinstance(request.response_format, JsonSchemaFormat):
        return 0, ""
    asked = request.response_format.json_schema
    if asked.schema_ is UNSET:
        return 0, ""
    schema = msgspec.json.decode(asked.schema_)
    return alternatives(schema), unenforced(schema) if asked.strict is True else ""


def _message_name(request: ChatRequest) -> str:
    for index, message in enumerate(request.messages):
        if message.name:
            return f"messages[{index}].name"
    return ""


def _prompt_count(n: int | None) -> int:
    return n or 1


def _list_length(value: str | list[Any]) -> int:
    """How many prompts `value` holds: a string or a list of token ids is one."""
    return 1 if isinstance(value, str) or isinstance(value[0], int) else len(value)


def _include_usage(request: ChatRequest | CompletionRequest) -> bool:
    asked = request.stream_options is not None and request.stream_options.include_usage
    return asked or (request.usage is not None and request.usage.include)


def _check_limit(limit: int | None, model: Model, param: str) -> None:
    if limit is not None and limit > model.max_output_tokens:
        raise InvalidRequest(
            f"'{param}' is too large: {limit}. {model.id} supports at most"
            f" {model.max_output_tokens} completion tokens.",
            param=param,
        )


def _check_chat(request: ChatRequest, model: Model) -> None:
    param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    _check_limit(request.token_limit, model, param)
    for index, message in enumerate(request.messages):
        if isinstance(message, UserMessage) and not isinstance(message.content, str):
            _check_parts(message.content, index, model)


def _check_parts(parts: Iterable[object], index: int, model: Model) -> None:
    for position, part in enumerate(parts):
        param = f"messages[{index}].content[{position}]"
        if isinstance(part, AudioPart | FilePart):
            raise UnsupportedParameter(f"{model.id} takes no audio or files.", param=param)
        if not isinstance(part, ImagePart):
            continue
        if "image" not in model.modalities:
            raise UnsupportedParameter(f"{model.id} takes no images.", param=param)
        _check_image(part.image_url.url, f"{param}.image_url.url")


def _check_image(url: str, param: str) -> None:
    """Only what engines decode themselves, of a kind that names nothing to fetch."""
    head, _, data = url.partition(",")
    if not head.startswith("data:image/"):
        raise UnsupportedParameter(
            "An image is taken as a data: URL only; this server fetches nothing.", param=param
        )
    if head not in IMAGE_HEADS:
        raise UnsupportedParameter(
            f"An image is PNG, JPEG, GIF or WebP in base64, not {head[:50]!r}.", param=param
        )
    try:
        image = binascii.a2b_base64(data.encode(), strict_mode=True)
    except ValueError:
        raise InvalidRequest("The image is no base64.", param=param) from None
    if not image:
        raise InvalidRequest("The image is empty.", param=param)
