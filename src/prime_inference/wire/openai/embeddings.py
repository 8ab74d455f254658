"""An answer of embeddings, rebuilt under our model name."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.domain.usage import NO_USAGE, Usage
from prime_inference.wire.openai.answers import Count, UpstreamUsage
from prime_inference.wire.openai.stream import Charge


class Embedding(Struct):
    embedding: Raw
    index: Count = 0


class EmbeddingAnswer(Struct):
    data: list[Embedding]
    usage: UpstreamUsage | None = None


_answers = msgspec.json.Decoder(EmbeddingAnswer)


def rebuild_embeddings(
    data: bytes,
    *,
    model: str,
    inputs: int,
    unreported: Callable[[], int] = lambda: 0,
    charge: Charge | None = None,
) -> tuple[bytes, Usage]:
    """The client's body and its usage. Raises UpstreamMalformed.

    `unreported` are the tokens of an engine that reports none.
    """
    try:
        answer = _answers.decode(data)
    except (ValueError, RecursionError):
        raise UpstreamMalformed("The upstream's answer is not what its API promises.") from None
    if sorted(item.index for item in answer.data) != list(range(inputs)):
        raise UpstreamMalformed("The upstream gave another number of embeddings than inputs.")
    usage = NO_USAGE if answer.usage is None else answer.usage.to_usage()
    if not usage.prompt_tokens:
        usage = Usage(unreported(), source="counted")
    counts: dict[str, object] = {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens,
    }
    if charge is not None and (cost := charge(usage)) is not None:
        counts["cost"] = cost
    body = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": item.index, "embedding": item.embedding}
            for item in sorted(answer.data, key=lambda item: item.index)
        ],
        "model": model,
        "usage": counts,
    }
    return msgspec.json.encode(body), usage
