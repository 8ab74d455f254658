"""Reads cases with vLLM's own parsers; run by a Python that has vLLM.

    python benchmarks/upstream_parsers/vllm_parsers.py cases.json results.json [plug-in]

With a plug-in's module, which registers parsers by `prime-FORMAT`, it reads with those instead.

Each text is read three times as vLLM's server does it: whole, token by token, and five tokens at
a time, as with speculative decoding or `--stream-interval 5`. The tokenizer has a token for each
marker and one for each byte.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = {
    "hermes": "hermes",
    "llama-3": "llama3_json",
    "kimi-k2": "kimi_k2",
    "deepseek-v3.1": "deepseek_v31",
    "deepseek-v3.2": "deepseek_v32",
    "glm-4.5": "glm45",
    "glm-4.7": "glm47",
    "qwen3-coder": "qwen3_coder",
}
MARKERS = [
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<think>", "</think>", "<|python_tag|>", "<|im_end|>", "<tool_response>", "</tool_response>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_end|>", "<|tool_call_argument_begin|>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "｜DSML｜",
]  # fmt: skip
HOW = "its parsers, called as its server calls them."
WAYS = {"streamed": 1, "streamed by five": 5}  # tokens in a delta

Json = Any


def tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKERS])
    return PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=False)


def deltas(tokens: Any, text: str, size: int) -> Iterator[tuple[str, list[int]]]:
    """The text in pieces of that many tokens; a character of several bytes stays whole."""
    units: list[tuple[str, list[int]]] = []
    held: list[int] = []
    for token in tokens.encode(text, add_special_tokens=False):
        held.append(token)
        piece = tokens.decode(held, skip_special_tokens=False)
        if "\ufffd" not in piece:
            units.append((piece, held))
            held = []
    assert not held, "the text has a character that is none"
    assert "".join(piece for piece, _ in units) == text
    for start in range(0, len(units), size):
        group = units[start : start + size]
        yield "".join(piece for piece, _ in group), [t for _, ids in group for t in ids]


def request_of(case: Json) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        model="m",
        messages=[{"role": "user", "content": "x"}],
        tools=case["tools"],
        tool_choice="auto",
    )


def read_whole(parser: Any, case: Json, request: Any, tokens: Any) -> Json:
    ids = tokens.encode(case["text"], add_special_tokens=False)
    _, content, calls = parser.parse(
        case["text"], request, enable_auto_tools=True, model_output_token_ids=ids
    )
    found = [[call.name, call.arguments] for call in calls or []]
    return {"content": content, "calls": found}


def read_streamed(parser: Any, case: Json, request: Any, tokens: Any, size: int) -> Json:
    content = ""
    calls: dict[int, list[str]] = {}
    pieces = list(deltas(tokens, case["text"], size))
    for number, (text, ids) in enumerate(pieces, 1):
        delta = parser.parse_delta(text, ids, request, [], finished=number == len(pieces))
        if delta is None:
            continue
        content += delta.content or ""
        for call in delta.tool_calls or []:
            known = calls.setdefault(call.index, ["", ""])
            function = call.function
            known[0] += (function and function.name) or ""
            known[1] += (function and function.arguments) or ""
    return {"content": content or None, "calls": [calls[index] for index in sorted(calls)]}


def read(case: Json, tokens: Any, name: str) -> Json:
    """What comes of one case, by way of reading; an exception is an answer too."""
    from vllm.parser.parser_manager import ParserManager

    kind = ParserManager.get_parser(name, enable_auto_tools=True)
    results: dict[str, Json] = {}
    for way in ("whole", *WAYS):
        request = request_of(case)
        try:
            parser = kind(tokens, request.tools)
            results[way] = (
                read_whole(parser, case, request, tokens)
                if way == "whole"
                else read_streamed(parser, case, request, tokens, WAYS[way])
            )
        except Exception as error:
            results[way] = {"exception": f"{type(error).__name__}: {error}"[:200]}
    return results


def main() -> None:
    import vllm

    source, target = map(Path, sys.argv[1:3])
    plug_in = sys.argv[3] if len(sys.argv) > 3 else None
    if plug_in is not None:
        importlib.import_module(plug_in).register()
    tokens = tokenizer()
    cases = json.loads(source.read_text())
    results = [
        read(case, tokens, NAMES[case["form"]] if plug_in is None else f"prime-{case['form']}")
        for case in cases
    ]
    document = {"name": "vLLM", "version": vllm.__version__, "how": HOW, "results": results}
    target.write_text(json.dumps(document, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
