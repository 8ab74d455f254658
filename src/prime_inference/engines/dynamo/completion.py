"""Dynamo's preprocessed request as a request of llama.cpp's, and its stream as Dynamo's. Pure.

Prompts and answers are token ids: Dynamo's frontend has the tokenizer, the chat template, stop
strings and parsers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

PASSED_ON = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip

NEUTRAL: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""OpenAI's defaults; llama.cpp's own would cut the distribution."""


class Timings(Struct, frozen=True):
    cache_n: int = 0  # prompt tokens that were in the cache


class Piece(Struct, frozen=True):
    """One event of llama.cpp's `/completion`."""

    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    tokens_evaluated: int = 0
    tokens_predicted: int = 0
    timings: Timings = Timings()


_pieces = msgspec.json.Decoder(Piece)


class Unsupported(ValueError):
    """The request asks for something that this engine has not."""


def completion_body(request: Mapping[str, Any], context_tokens: int) -> dict[str, Any]:
    """What llama.cpp is sent. Raises Unsupported."""
    sampling = request.get("sampling_options") or {}
    stops = request.get("stop_conditions") or {}
    prompt = list(request["token_ids"])
    if len(prompt) >= context_tokens:
        raise Unsupported(f"a prompt of {len(prompt)} tokens exceeds {context_tokens}")
    room = context_tokens - len(prompt)
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": min(stops.get("max_tokens") or room, room),
        "stream": True,
        "return_tokens": True,
        "cache_prompt": True,
        **NEUTRAL,
    }
    body |= {name: sampling[name] for name in PASSED_ON if sampling.get(name) is not None}
    if sampling.get("repetition_penalty") is not None:
        body["repeat_penalty"] = sampling["repetition_penalty"]
    if stops.get("ignore_eos"):
        body["ignore_eos"] = True
    guided = {
        name: value for name, value in (sampling.get("guided_decoding") or {}).items() if value
    }
    if guided.keys() - {"json"}:
        raise Unsupported(f"this engine has no guided decoding by {', '.join(guided)}")
    if guided:
        body["json_schema"] = guided["json"]
    return body


def chunk_of(line: str) -> dict[str, Any] | None:
    """What Dynamo is sent for one line of the stream; None for a line that says nothing.

    Raises msgspec.DecodeError for a line that is no event of llama.cpp's.
    """
    if not line.startswith("data: "):
        return None
    piece = _pieces.decode(line[6:])
    if not piece.stop:
        return {"token_ids": piece.tokens} if piece.tokens else None
    return {
        "token_ids": piece.tokens,
        "finish_reason": "length" if piece.stop_type == "limit" else "stop",
        "completion_usage": {
            "prompt_tokens": piece.tokens_evaluated,
            "completion_tokens": piece.tokens_predicted,
            "total_tokens": piece.tokens_evaluated + piece.tokens_predicted,
            "prompt_tokens_details": {"cached_tokens": piece.timings.cache_n},
        },
    }
