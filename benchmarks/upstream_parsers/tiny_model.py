"""Writes a model of random weights for vLLM, whose answers only a grammar can make sense of.

    PYTHON_WITH_VLLM benchmarks/upstream_parsers/tiny_model.py FOLDER

A Qwen3 of two layers, with the tokenizer of `vllm_parsers` and a chat template that writes tools.
Each tag that ends a text is a token here: byte by byte, a text would never end by chance.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vllm_parsers import tokenizer  # type: ignore[import-not-found]  # beside this file

END = "<|im_end|>"
ENDS_OF_TEXTS = ["\n</parameter>", "</｜DSML｜parameter>"]
TEMPLATE = """{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{%- endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{%- endfor %}<|im_start|>assistant
"""


def main() -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = Path(sys.argv[1])
    torch.manual_seed(1)
    tokens = tokenizer()
    tokens.add_tokens(ENDS_OF_TEXTS)
    tokens.chat_template = TEMPLATE
    tokens.eos_token = END
    config = Qwen3Config(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # the smallest that vLLM has kernels for on CPUs
        max_position_embeddings=16384,
        eos_token_id=tokens.eos_token_id,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokens.save_pretrained(folder)


if __name__ == "__main__":
    main()
