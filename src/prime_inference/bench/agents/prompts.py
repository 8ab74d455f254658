"""From counts and block ids to messages of exactly so many tokens.

A prompt is a row of token positions. A block's id determines the words of its positions, and
messages are cut at positions, so turns that share blocks send the same text (see
docs/agent-benchmark.md, "Prompts").
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from prime_inference.bench.agents.blocks import Runs, SeenBlocks
from prime_inference.bench.agents.vocabulary import MARKER_WORDS, WORDS, Message, Vocabulary
from prime_inference.bench.agents.workload import Session, Turn


class Cut(msgspec.Struct, frozen=True):
    """A message of `role` that ends before position `end`."""

    end: int
    role: str


Cuts = tuple[Cut, ...]

STREAM_BYTES = 1 << 24
"""Of one scope, a byte a token; traces whose ids lie higher pay a digest for each block."""


class PromptTooShort(ValueError):
    """Fewer tokens than the template and a marker take."""


def layouts(session: Session, vocabulary: Vocabulary) -> list[Cuts]:
    """Where the messages of every turn are cut. Raises PromptTooShort."""
    made: list[Cuts] = []
    for k, turn in enumerate(session.turns):
        if not k:
            made.append(_first(session, turn, vocabulary))
        else:
            before = session.turns[k - 1]
            shared = _shared(before, turn, session.block_tokens)
            made.append(_next(made[-1], before, turn, shared, session, vocabulary))
    return made


def _shared(before: Turn, turn: Turn, block_tokens: int) -> int:
    """Positions that two turns have in common; everything, where blocks say nothing."""
    if not before.blocks or not turn.blocks:
        return min(before.input_tokens, turn.input_tokens)
    seen = SeenBlocks()
    seen.add(before.blocks)
    blocks = seen.hit(turn.blocks)
    whole = sum(count for _, count in before.blocks)
    # the last block of a prompt gets another id when it fills up: it is the same place still
    at_the_end = blocks >= whole - 1
    return min(before.input_tokens, turn.input_tokens) if at_the_end else blocks * block_tokens


def _first(session: Session, turn: Turn, vocabulary: Vocabulary) -> Cuts:
    needed = vocabulary.first_user + MARKER_WORDS
    if turn.input_tokens < needed:
        raise PromptTooShort(
            f"session {session.id}: a prompt of {turn.input_tokens} tokens; the template and the"
            f" marker alone take {needed}"
        )
    system = session.system_tokens
    if system < vocabulary.system + 1 or turn.input_tokens - system < needed:
        return (Cut(turn.input_tokens, "user"),)
    return (Cut(system, "system"), Cut(turn.input_tokens, "user"))


def _next(
    cuts: Cuts, before: Turn, turn: Turn, shared: int, session: Session, vocabulary: Vocabulary
) -> Cuts:
    kept = tuple(cut for cut in cuts if cut.end <= shared)
    if kept == cuts:
        exchange = _exchange(before, turn, vocabulary)
        return (*cuts[:-1], Cut(turn.input_tokens, "user")) if exchange is None else (
            *cuts, *exchange
        )  # fmt: skip
    while kept and kept[-1].role == "user":  # what is left of it becomes the last message
        kept = kept[:-1]
    first_kept = not any(cut.role == "assistant" for cut in kept)
    least = vocabulary.first_user + MARKER_WORDS if first_kept else vocabulary.user + 1
    if turn.input_tokens - (kept[-1].end if kept else 0) < least:
        return _first(session, turn, vocabulary)
    return (*kept, Cut(turn.input_tokens, "user"))


def _exchange(before: Turn, turn: Turn, vocabulary: Vocabulary) -> tuple[Cut, Cut] | None:
    """The recorded answer and what came after it; None where there is no room for both."""
    start = before.input_tokens
    low = start + max(0, vocabulary.assistant) + 1
    high = turn.input_tokens - max(0, vocabulary.user) - 1
    if low > high:
        return None
    end = min(max(start + before.output_tokens, low), high)
    return Cut(end, "assistant"), Cut(turn.input_tokens, "user")


class PromptText:
    """Writes the messages of the turns of one tree; `scope` is what block ids are unique in."""

    def __init__(self, vocabulary: Vocabulary, scope: str) -> None:
        self._vocabulary = vocabulary
        self._scope = scope
        self._bytes = b""

    def messages(
        self, session: Session, index: int, cuts: Cuts, marker: Sequence[str]
    ) -> list[Message]:
        """The prompt of turn `index`, with `marker` first in its first user message."""
        turn = session.turns[index]
        words = self._words(turn.blocks, session.block_tokens, turn.input_tokens)
        tail = turn.input_tokens - len(words)
        words += self._chosen(f"{self._scope} tail {session.id} {index}", tail)
        messages: list[Message] = []
        start = 0
        marked = False
        for cut in cuts:
            cost = self._cost(cut.role, first=not marked)
            own = words[start + max(0, cost) : cut.end]
            if cost < 0:  # the message takes the place of one that the template puts in
                own = [*self._chosen(f"{self._scope} {cut.role} {start}", -cost), *own]
            if cut.role == "user" and not marked:
                own[: len(marker)] = marker
                marked = True
            messages.append({"role": cut.role, "content": " ".join(own)})
            start = cut.end
        return messages

    def _cost(self, role: str, *, first: bool) -> int:
        match role:
            case "system":
                return self._vocabulary.system
            case "assistant":
                return self._vocabulary.assistant
            case _:
                return self._vocabulary.first_user if first else self._vocabulary.user

    def _words(self, runs: Runs, block_tokens: int, limit: int) -> list[str]:
        """Words of whole runs at a time: those of ids that follow each other lie together."""
        choices = bytearray()
        for first, count in runs:
            start, end = first * block_tokens, (first + count) * block_tokens
            if start >= 0 and end <= STREAM_BYTES:
                choices += self._stream(end)[start:end]
            else:
                for block in range(first, first + count):
                    choices += _digest(f"{self._scope} {block}", block_tokens)
        words = self._vocabulary.words
        return [words[byte % WORDS] for byte in choices[:limit]]

    def _stream(self, end: int) -> bytes:
        """The scope's bytes up to `end`; a longer digest begins with the shorter one."""
        if len(self._bytes) < end:
            self._bytes = _digest(self._scope, max(end, 2 * len(self._bytes)))
        return self._bytes

    def _chosen(self, key: str, count: int) -> list[str]:
        return chosen_words(self._vocabulary.words, key, count)


def chosen_words(words: Sequence[str], key: str, count: int) -> list[str]:
    """`count` words that `key` determines."""
    return [words[byte % WORDS] for byte in _digest(key, max(0, count))]


def _digest(key: str, length: int) -> bytes:
    return hashlib.shake_128(key.encode()).digest(length)


def cache_marker(words: Sequence[str], key: str) -> list[str]:
    """The words that make a play's prompts unlike every other play's."""
    return chosen_words(words, f"marker {key}", MARKER_WORDS)


def cold_messages(vocabulary: Vocabulary, key: str, input_tokens: int) -> list[Message]:
    """A prompt like no other, from its first word on. Raises PromptTooShort."""
    words = input_tokens - vocabulary.first_user
    if words < MARKER_WORDS:
        raise PromptTooShort(f"a cold prompt of {input_tokens} tokens has no room for its nonce")
    content = chosen_words(vocabulary.words, f"cold {key}", words)
    return [{"role": "user", "content": " ".join(content)}]
