"""A model folder made on the spot: every byte of text is a token.

What Dynamo's frontend and mocker need of a model: a tokenizer, a chat template, a config.
Weights, which a real engine needs too, come from `byte_weights`.
The mocker invents tokens, so each token of the vocabulary has a text of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 2048  # the mocker writes tokens 1000 to 2000, whatever the model

SPACE = chr(256 + 32)  # what byte-level tokenizers write for a space

CONFIG = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
}
"""Heads of 32 dimensions are the smallest that vLLM has kernels for on CPUs."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_model(folder: Path, context_tokens: int) -> Path:
    """Write the folder's files anew; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[0],
            "eos_token": SPECIAL[2],
            "model_max_length": context_tokens,
            "chat_template": CHAT_TEMPLATE,
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **CONFIG,
            "max_position_embeddings": context_tokens,
            "torch_dtype": "float32",
            "bos_token_id": 256,
            "eos_token_id": 258,
        },
        "generation_config.json": {"bos_token_id": 256, "eos_token_id": 258},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def _tokenizer() -> dict[str, object]:
    """A token for each byte, the special ones, and names for the rest."""
    vocabulary = {_printable(byte): byte for byte in range(256)}
    vocabulary |= {text: 256 + at for at, text in enumerate(SPECIAL)}
    # no text becomes one of these, but each becomes a text, which names it
    vocabulary |= {f"{SPACE}t{token}": token for token in range(len(vocabulary), VOCABULARY)}
    added = [
        {
            "id": 256 + at,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for at, text in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level | {"use_regex": False},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }


def _printable(byte: int) -> str:
    """The character that byte-level tokenizers write for a byte (GPT-2's table)."""
    if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
        return chr(byte)
    others = [b for b in range(256) if not (33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255)]
    return chr(256 + others.index(byte))
