"""Random weights for the model of `byte_model`, so that a real engine can serve it.

What it writes makes no sense, and depends on every token before: queries and keys are scaled so
that attention falls on few tokens, which may be any. Greedy answers are the same in every engine
that computes the same thing, and others where a cached block is wrong. float32, since a sum that
is rounded in another order must not change an answer.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator
from pathlib import Path

from prime_inference.fleet.byte_model import CONFIG

SEED = 1
SHARP = 3.0  # standard deviation of attention's scores is its square: 9, nearly one token
FLAT = 0.5  # standard deviation of logits: at temperature 1 every token has its chance


def write_byte_weights(folder: Path) -> None:
    """Write `model.safetensors` anew: an 8-byte length, a JSON header, the tensors' bytes."""
    header: dict[str, object] = {}
    parts: list[bytes] = []
    end = 0
    for name, shape, values in _tensors(random.Random(SEED)):  # noqa: S311  # no secret
        data = values.tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + len(data)]}
        parts.append(data)
        end += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(
        b"".join((len(text).to_bytes(8, "little"), text, *parts))
    )


Tensor = tuple[str, list[int], "array[float]"]


def _tensors(rng: random.Random) -> Iterator[Tensor]:
    """Names and shapes as transformers has them for Llama."""
    hidden, width = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    heads, vocabulary = CONFIG["num_attention_heads"], CONFIG["vocab_size"]
    keys = hidden // heads * CONFIG["num_key_value_heads"]

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
        deviation = gain / columns**0.5  # of normalised inputs come outputs of `gain`
        values = array("f", (rng.gauss(0.0, deviation) for _ in range(rows * columns)))
        return f"{name}.weight", [rows, columns], values

    def norm(name: str) -> Tensor:
        return f"{name}.weight", [hidden], array("f", [1.0] * hidden)

    yield matrix("model.embed_tokens", vocabulary, hidden, hidden**0.5)
    for layer in range(CONFIG["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield norm(f"{prefix}.input_layernorm")
        yield matrix(f"{prefix}.self_attn.q_proj", hidden, hidden, SHARP)
        yield matrix(f"{prefix}.self_attn.k_proj", keys, hidden, SHARP)
        yield matrix(f"{prefix}.self_attn.v_proj", keys, hidden)
        yield matrix(f"{prefix}.self_attn.o_proj", hidden, hidden)
        yield norm(f"{prefix}.post_attention_layernorm")
        yield matrix(f"{prefix}.mlp.gate_proj", width, hidden)
        yield matrix(f"{prefix}.mlp.up_proj", width, hidden)
        yield matrix(f"{prefix}.mlp.down_proj", hidden, width)
    yield norm("model.norm")
    name, shape, head = matrix("lm_head", vocabulary, hidden, FLAT)
    # bytes that are no text alone never win: what a client sees of them depends on the stream
    head[128 * hidden : 256 * hidden] = array("f", bytes(4 * 128 * hidden))
    yield name, shape, head
