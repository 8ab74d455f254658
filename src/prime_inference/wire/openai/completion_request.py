"""`POST /completions` and `POST /embeddings`: the requests, closed and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from prime_inference.domain.errors import InvalidRequest
from prime_inference.wire.openai.bounds import MAX_DIMENSIONS, MAX_INPUTS, MAX_PROMPTS
from prime_inference.wire.openai.chat_request import (
    Choices,
    LogitBias,
    Opaque,
    Penalty,
    Probability,
    Seed,
    ServiceTier,
    Stops,
    StreamOptions,
    Temperature,
    TokenCount,
    UsageOptions,
    _Closed,
)
from prime_inference.wire.openai.decode import decode

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]


class CompletionRequest(_Closed):
    """All of OpenAI's completion parameters, and `top_k`, `min_p`, `repetition_penalty`,
    `service_tier`.

    `prompt` is text, token ids, or a list of either.
    """

    model: ModelName
    prompt: str | list[Any]
    best_of: Choices | None = None
    echo: Literal[False] | bool | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    max_tokens: TokenCount | None = None
    min_p: Probability | None = None
    n: Choices | None = None
    presence_penalty: Penalty | None = None
    prompt_cache_key: Opaque | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    seed: Seed | None = None
    service_tier: ServiceTier | None = None
    stop: Stops | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    temperature: Temperature | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Probability | None = None
    usage: UsageOptions | None = None
    user: Opaque | None = None

    @property
    def token_limit(self) -> int | None:
        """The answer's length limit."""
        return self.max_tokens


class EmbeddingRequest(_Closed):
    """`input` is text, token ids, or a list of either."""

    model: ModelName
    input: str | list[Any]
    dimensions: Annotated[int, Meta(ge=1, le=MAX_DIMENSIONS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Opaque | None = None


_completions = msgspec.json.Decoder(CompletionRequest)
_embeddings = msgspec.json.Decoder(EmbeddingRequest)


def decode_completion_request(body: bytes) -> CompletionRequest:
    """Raises InvalidRequest."""
    request = decode(_completions, body)
    prompts = _check_prompts(request.prompt, "prompt", MAX_PROMPTS)
    if prompts * (request.n or 1) > MAX_PROMPTS:
        raise InvalidRequest(
            f"'n' times the number of prompts is more than {MAX_PROMPTS}.", param="n"
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options"
        )
    return request


def decode_embedding_request(body: bytes) -> EmbeddingRequest:
    """Raises InvalidRequest."""
    request = decode(_embeddings, body)
    _check_prompts(request.input, "input", MAX_INPUTS)
    return request


def _check_prompts(value: str | list[Any], param: str, limit: int) -> int:
    """How many prompts: text, token ids, a list of texts, or a list of lists of token ids."""
    if isinstance(value, str):
        if not value:
            raise InvalidRequest(f"'{param}' must not be empty.", param=param)
        return 1
    if not value:
        raise InvalidRequest(f"'{param}' must not be an empty list.", param=param)
    if _fits(value, TokenIds):
        return 1
    if len(value) > limit:
        raise InvalidRequest(f"'{param}' has more than {limit} items.", param=param)
    if not _fits(value, list[Text]) and not _fits(value, list[TokenIds]):
        raise InvalidRequest(
            f"Invalid value for '{param}': expected a string, a list of strings, a list of token"
            " ids, or a list of lists of token ids.",
            param=param,
        )
    return len(value)


def _fits(value: object, target: Any) -> bool:
    try:
        msgspec.convert(value, target)
    except msgspec.ValidationError:
        return False
    return True
