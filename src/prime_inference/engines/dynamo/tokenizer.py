"""The tokenizer inside a GGUF file, as the files that Dynamo's frontend reads.

Byte-level BPE as GPT-2's and SmolLM's; other kinds are refused. The chat template comes
along, so the frontend renders prompts as the model was trained.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prime_inference.domain.errors import CannotStart
from prime_inference.engines.local.gguf import read_metadata

CONTROL = 3  # llama.cpp's token type for tokens that are not text
USER_DEFINED = 4


class TokenizerUnknown(CannotStart):
    """The model's tokenizer is of a kind that is not written here."""


def write_model_folder(model_file: Path, folder: Path, context_tokens: int) -> Path:
    """Write the folder's files; returns it. Raises TokenizerUnknown, NotGguf, OSError."""
    fields = read_metadata(model_file)
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or pre not in ("smollm", "gpt-2", "default"):
        raise TokenizerUnknown(
            f"{model_file} has a tokenizer of kind {kind} ({pre}); Dynamo's frontend can be given"
            " byte-level BPE only (gpt2, smollm)."
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    eos = fields["tokenizer.ggml.eos_token_id"]
    bos = fields.get("tokenizer.ggml.bos_token_id", eos)
    files = {
        "tokenizer.json": _tokenizer(fields, split_digits=pre == "smollm"),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokens[bos],
            "eos_token": tokens[eos],
            "model_max_length": context_tokens,
            "chat_template": fields.get("tokenizer.chat_template", ""),
        },
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(tokens),
            "max_position_embeddings": context_tokens,
            "bos_token_id": bos,
            "eos_token_id": eos,
        },
        "generation_config.json": {"bos_token_id": bos, "eos_token_id": eos},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def _tokenizer(fields: dict[str, Any], *, split_digits: bool) -> dict[str, Any]:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    types: list[int] = fields.get("tokenizer.ggml.token_type", [1] * len(tokens))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    before: list[dict[str, Any]] = [byte_level | {"use_regex": True}]
    if split_digits:
        before.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": tokens[token],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": kind == CONTROL,
            }
            for token, kind in enumerate(types)
            if kind in (CONTROL, USER_DEFINED)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": before},
        "post_processor": None,
        "decoder": byte_level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(tokens)},
            "merges": [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]],
        },
    }
