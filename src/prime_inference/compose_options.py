"""What servers are told: where to listen, and what to serve."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from prime_inference.adapters.memory.coordination import MemoryCoordination
from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.compose_billing import BillingOptions
from prime_inference.domain.models import EngineKind, GatewayParser
from prime_inference.gateway.clocks import ClockLimits
from prime_inference.ports.coordination import Coordination
from prime_inference.wire.http_client import Origin

DRAIN_SECONDS = 25.0
"""For answers in flight after the first signal: what remains of Kubernetes' default grace period of
30 s is for telling those that are broken off."""

KEEP_ALIVE_SECONDS = 15.0  # load balancers close connections that are silent for 60 s

ENGINE_PARAMETERS: dict[EngineKind, frozenset[str]] = {
    "vllm": frozenset({
        "dimensions", "encoding_format", "frequency_penalty", "logit_bias", "logprobs", "min_p",
        "n", "parallel_tool_calls", "presence_penalty", "reasoning_effort", "repetition_penalty",
        "response_format", "seed", "stop", "temperature", "tool_choice", "tools", "top_k",
        "top_logprobs", "top_p",
    }),
    "openai": frozenset({
        "dimensions", "encoding_format", "frequency_penalty", "logit_bias", "logprobs", "n",
        "parallel_tool_calls", "presence_penalty", "reasoning_effort", "response_format", "seed",
        "stop", "temperature", "tool_choice", "tools", "top_logprobs", "top_p",
    }),
    "dynamo": frozenset({
        "frequency_penalty", "logprobs", "min_p", "n", "parallel_tool_calls", "presence_penalty",
        "reasoning_effort", "repetition_penalty", "response_format", "seed", "stop", "temperature",
        "tool_choice", "tools", "top_k", "top_logprobs", "top_p",
    }),
    "llama.cpp": frozenset({
        "encoding_format", "frequency_penalty", "logit_bias", "logprobs", "min_p",
        "presence_penalty", "response_format", "seed", "stop", "temperature", "top_k",
        "top_logprobs", "top_p",
    }),
}  # fmt: skip
"""Parameters that each kind of engine honours; everything else is refused by name."""


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where a gateway listens, and where it keeps its state."""

    state_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    control_port: int = 8001
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    drain_seconds: float = DRAIN_SECONDS  # for answers in flight, once it is told to stop
    clocks: ClockLimits = field(default_factory=ClockLimits)
    billing: BillingOptions | None = None  # None: one tenant, and nobody is billed
    redis_url: str | None = field(default=None, repr=False)  # it may hold a password

    def __post_init__(self) -> None:
        """Raises ValueError for a URL that is none of Redis. It need not answer."""
        self.coordination(time.monotonic)

    def coordination(self, clock: Callable[[], float]) -> Coordination:
        """What replicas agree in."""
        if self.redis_url is None:
            return MemoryCoordination(clock)
        return RedisCoordination(self.redis_url)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `prime inference serve` is told on the command line."""

    state_dir: Path
    cache_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    control_port: int = 8001
    model_file: Path | None = None  # a GGUF file; None: the default model, fetched once
    model_id: str | None = None  # what clients name it; None: derived from the file's name
    slots: int = 2  # answers written at a time; each reserves the memory of a whole context
    context_tokens: int | None = None  # context window; None: what the model was trained with
    drain_seconds: float = DRAIN_SECONDS
    billing: BillingOptions | None = None

    @property
    def listen(self) -> ListenOptions:
        """Those of the gateway in it."""
        return ListenOptions(
            self.state_dir,
            self.host,
            self.port,
            self.control_port,
            drain_seconds=self.drain_seconds,
            billing=self.billing,
        )


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What `prime inference gateway` is told: one upstream that already runs."""

    listen: ListenOptions
    upstream: str  # base URL, e.g. http://127.0.0.1:9000/v1
    model_id: str
    upstream_model: str | None = None  # the upstream's name for it, if another
    engine: EngineKind = "vllm"
    slots: int = 4096  # requests in flight at a time; the engine's own limit stands behind it
    context_tokens: int = 131_072
    tool_format: str | None = None  # of calls in the model's text; None: the upstream finds them
    reasoning: Literal["none", "opened", "optional"] = "none"  # with it: see `GatewayParser`

    @property
    def tool_parser(self) -> Literal["upstream"] | GatewayParser:
        if self.tool_format is None:
            return "upstream"
        by_template = self.engine != "llama.cpp"  # which takes no template that knows of tools
        prompt: Literal["template", "gateway"] = "template" if by_template else "gateway"
        return GatewayParser(self.tool_format, prompt, self.reasoning)

    def __post_init__(self) -> None:
        """Raises ValueError for an upstream that is no base URL."""
        Origin.parse(self.upstream)


@dataclass(frozen=True, slots=True)
class FleetGatewayOptions:
    """What `prime inference fleet gateway` is told: a list of deployments that may change."""

    listen: ListenOptions
    deployments: Path  # a file as `fleet.ready` writes it


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running server, as announced once it is ready to answer."""

    base_url: str  # http://127.0.0.1:8000/api/v1
    control_url: str  # http://127.0.0.1:8001
    api_key: str
    model: str


Announce = Callable[[Endpoint], None]
