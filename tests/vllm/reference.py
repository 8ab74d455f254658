"""Answers greedily with transformers; runs in vLLM's environment.

    python reference.py FOLDER TOKENS < prompts.json > answers.json

Everything is computed anew for each token, so that no cache can be wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any


def main() -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    folder, count = sys.argv[1], int(sys.argv[2])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for prompt in json.load(sys.stdin):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=False,
        )
        length = ids.shape[1]
        with torch.inference_mode():
            while ids.shape[1] < length + count and ids[0, -1] != tokenizer.eos_token_id:
                best = model(ids, use_cache=False).logits[0, -1].argmax()
                ids = torch.cat([ids, best.view(1, 1)], 1)
        answers.append(tokenizer.decode(ids[0, length:], skip_special_tokens=True))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
