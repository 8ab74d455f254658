"""Log probabilities of a chat completion's tokens, with OpenAI's fields and no others.

Engines differ: llama.cpp adds token ids and 20 alternatives where none are asked for, and
writes null for the logarithm of 0.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.openai.answers import Answer

IMPOSSIBLE = -9999.0  # what OpenAI writes for a token of probability 0


class _Alternative(Struct):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None

    def __post_init__(self) -> None:
        if self.logprob is None:
            self.logprob = IMPOSSIBLE


class _Token(_Alternative):
    top_logprobs: list[_Alternative] = []


class _Logprobs(Struct):
    content: list[_Token] | None = None
    refusal: list[_Token] | None = None


_decoder = msgspec.json.Decoder(_Logprobs | None)
_encoder = msgspec.json.Encoder()


def keep_alternatives(answer: Answer, count: int) -> None:
    """Write the logprobs of every choice anew, with `count` alternatives of each token at most.

    Raises UpstreamMalformed.
    """
    for choice in answer.choices:
        try:
            logprobs = _decoder.decode(choice.logprobs)
        except (ValueError, RecursionError):
            raise UpstreamMalformed(
                "The upstream's logprobs are not what its API promises."
            ) from None
        if logprobs is None:
            continue
        for token in (*(logprobs.content or ()), *(logprobs.refusal or ())):
            token.top_logprobs = token.top_logprobs[:count]
        choice.logprobs = Raw(_encoder.encode(logprobs))
