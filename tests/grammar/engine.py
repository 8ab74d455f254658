"""Real xgrammar: whether it accepts a text, and texts that it lets a model write."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

import torch
import xgrammar
from xgrammar.testing import _get_matcher_from_grammar

from prime_inference.toolcalls.constraint import StructuralTag

# A vocabulary of all bytes and of pieces that matter to formats: masks over it reach every text
# that masks over a real vocabulary reach.
_PIECES = [
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<think>", "</think>", "<function=", "</function>", "<parameter=", "</parameter>", "\n\n",
    "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜DSML｜invoke", "</｜DSML｜parameter>", "é",
    'null', "true", '": ', '", "', "\\u", "\\n", '{"name": "', "</", "{}", "[]", "}}",
]  # fmt: skip
_BYTES = [bytes([value]) for value in range(256)]
VOCABULARY = [b"<stop>", *(piece.encode() for piece in _PIECES), *_BYTES]


@lru_cache(maxsize=1)
def _compiler() -> xgrammar.GrammarCompiler:
    info = xgrammar.TokenizerInfo(VOCABULARY, xgrammar.VocabType.RAW, stop_token_ids=[0])
    return xgrammar.GrammarCompiler(info, cache_enabled=False)


def grammar_of(constraint: StructuralTag) -> Any:
    assert constraint.tag is not None
    return xgrammar.Grammar.from_structural_tag(constraint.encoded.decode())


def accepts(grammar: Any, text: str) -> bool:
    matcher = _get_matcher_from_grammar(grammar)
    return bool(matcher.accept_string(text)) and matcher.is_terminated()


def sample(constraint: StructuralTag, seed: int, patience: int = 400) -> str:
    """A text written at random under the token masks; the end is taken more and more readily."""
    chance = random.Random(seed)
    compiled = _compiler().compile_structural_tag(constraint.encoded.decode())
    matcher = xgrammar.GrammarMatcher(compiled)
    mask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))
    written: list[bytes] = []
    while True:
        matcher.fill_next_token_bitmask(mask)
        allowed = _allowed(mask)
        token = _choose(chance, allowed, len(written) / patience)
        assert matcher.accept_token(token)
        if token == 0:
            # Free text may hold bytes that are no UTF-8; engines decode it like this.
            return b"".join(written).decode(errors="replace")
        written.append(VOCABULARY[token])
        assert len(written) < 50 * patience, "a text without end"


def _allowed(mask: torch.Tensor) -> list[int]:
    bits = [int(word) & 0xFFFFFFFF for word in mask[0].tolist()]
    return [i for i in range(len(VOCABULARY)) if bits[i // 32] >> (i % 32) & 1]


_ENDING = frozenset(
    index
    for index, piece in enumerate(VOCABULARY)
    if piece.startswith(b"</") or piece in (b'"', b"}", b"]", b"}}", b"\n")
)


def _choose(chance: random.Random, allowed: list[int], age: float) -> int:
    """A token at random; with age, rather one that ends something."""
    if allowed[0] == 0 and chance.random() < 0.2 + age:
        return 0
    ending = [token for token in allowed if token in _ENDING]
    if ending and chance.random() < min(age, 0.7):
        return chance.choice(ending)
    return chance.choice([token for token in allowed if token] or allowed)


def pretty(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
