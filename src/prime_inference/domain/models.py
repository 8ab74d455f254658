"""Models and the deployments that serve them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

EngineKind = Literal["llama.cpp", "vllm", "openai", "dynamo"]
"""Which dialect of OpenAI's API a deployment speaks (see `gateway.dialects`)."""

HealthCheck = Literal["none", "llama.cpp", "vllm", "dynamo"]
"""How to ask a deployment whether it can serve (see `gateway.readiness`)."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """US dollars per million tokens, as decimal text."""

    prompt: str = "0"
    completion: str = "0"
    cached_prompt: str = "0"


@dataclass(frozen=True, slots=True)
class Model:
    """What clients name. `revision` identifies weights, tokenizer and chat template."""

    id: str
    revision: str
    created: int  # seconds since the epoch
    context_tokens: int
    max_output_tokens: int
    name: str = ""
    modalities: frozenset[str] = frozenset({"text"})
    pricing: Pricing = Pricing()
    image_tokens: int | None = None  # that one image can be at most; None: a whole context


@dataclass(frozen=True, slots=True)
class GatewayParser:
    """The gateway finds the tool calls of a deployment in its raw text (docs/tool-calls.md).

    `format` is one of `toolcalls.formats`. `prompt` says who writes tools and earlier calls
    into the prompt: the model's chat template or, where it knows of none, the gateway.
    """

    format: str
    prompt: Literal["template", "gateway"] = "template"
    reasoning: Literal["none", "opened", "optional"] = "none"  # where the raw text has some


@dataclass(frozen=True, slots=True)
class Deployment:
    """One model revision in one datacenter behind one base URL."""

    id: str
    model: str
    datacenter: str
    base_url: str  # where `/chat/completions` lives, e.g. http://127.0.0.1:9000/v1
    engine: EngineKind
    slots: int  # requests it may work on at a time; more are refused, not queued
    upstream_model: str  # the name the engine knows the model by
    parameters: frozenset[str] = field(default_factory=frozenset)  # OpenAI's, that it honours
    routes: frozenset[str] = frozenset({"chat/completions", "completions"})
    schema_alternatives: int = 1000  # OpenAI's limit on enum values; a schema may have so many
    health: HealthCheck = "none"
    draining: bool = False  # it is offered no more requests; those it has go on
    revision: str = ""  # if it is another than the model's, in the middle of a rollout say
    tool_parser: Literal["upstream"] | GatewayParser = "upstream"  # who finds tool calls
    tokens_per_second: int | None = None  # of output, with all slots in use; None: not declared
