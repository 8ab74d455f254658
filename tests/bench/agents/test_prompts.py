"""Prompts of exact length whose shared blocks are shared text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.bench.agents.blocks import SeenBlocks, to_runs
from prime_inference.bench.agents.generate import generate
from prime_inference.bench.agents.prompts import (
    PromptText,
    PromptTooShort,
    cache_marker,
    cold_messages,
    layouts,
)
from prime_inference.bench.agents.scale import Scale, scaled
from prime_inference.bench.agents.vocabulary import (
    CANDIDATES,
    CalibrationFailed,
    Message,
    Vocabulary,
    calibrate,
)
from prime_inference.bench.agents.workload import Session, Turn, hit_tokens
from prime_inference.engines.mock.text import chat_prompt


class Template:
    """A server's count: words that are one token each but for `long` ones, and overheads."""

    def __init__(
        self, *, start: int = 1, system: int = 1, user: int = 1, assistant: int = 1,
        long: frozenset[str] = frozenset(), default_system: int = 0,
    ) -> None:  # fmt: skip
        self.start, self.default_system, self.long = start, default_system, long
        self.roles = {"system": system, "user": user, "assistant": assistant}
        self.asked = 0

    def tokens(self, messages: Sequence[Message]) -> int:
        has_system = messages[0]["role"] == "system"
        total = self.start + (0 if has_system else self.default_system)
        for message in messages:
            words = message["content"].split()
            total += self.roles[message["role"]] + len(words)
            total += sum(word in self.long for word in words)
        return total

    async def count(self, messages: Sequence[Message]) -> int:
        self.asked += 1
        return self.tokens(messages)


SMOL = Template(start=4, system=5, user=5, assistant=5, default_system=22)


async def test_calibration_finds_words_and_costs() -> None:
    template = Template(start=3, system=7, user=5, assistant=4)
    found = await calibrate(template.count)
    assert (found.first_user, found.system, found.exchange) == (8, 7, 9)
    assert len(set(found.words)) == 64
    assert template.asked == 6


async def test_calibration_leaves_out_words_of_several_tokens() -> None:
    found = await calibrate(Template(long=frozenset({"people", "music", "time"})).count)
    assert not {"people", "music", "time"} & set(found.words)


async def test_a_system_message_may_replace_one_of_the_templates_own() -> None:
    assert (await calibrate(SMOL.count)).system == 5 - 22


async def test_a_server_whose_words_cost_more_than_a_token_is_refused() -> None:
    with pytest.raises(CalibrationFailed, match="only 0 of"):
        await calibrate(Template(long=frozenset(CANDIDATES)).count)


async def test_a_cost_that_is_no_constant_is_refused() -> None:
    template = Template()

    async def count(messages: Sequence[Message]) -> int:
        return template.tokens(messages) + len(messages) ** 2

    with pytest.raises(CalibrationFailed, match="the server counts"):
        await calibrate(count)


MOCK = Vocabulary(words=CANDIDATES[:64], first_user=2, system=1, exchange=2)
"""The costs of Template()."""


def grown(lengths: list[tuple[int, int]], system: int) -> Session:
    """Turns that each add (output, new) tokens, in blocks of 4 with a last one that fills up."""
    turns = []
    tokens, number = 0, 0
    full: list[int] = []
    for output, new in lengths:
        tokens += output + new
        while len(full) < tokens // 4:
            full.append(number)
            number += 1
        tail = [number] if tokens % 4 else []
        number += len(tail)
        turns.append(Turn(start=0, delay=0, input_tokens=tokens, output_tokens=output,
                          blocks=to_runs([*full, *tail])))  # fmt: skip
    return Session(id="s", turns=tuple(turns), block_tokens=4, system_tokens=system)


lengths = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("template", "vocabulary"),
    [
        (Template(), MOCK),
        (SMOL, Vocabulary(words=CANDIDATES[:64], first_user=31, system=-17, exchange=10)),
    ],
    ids=["words", "with a default system"],
)
@settings(max_examples=150, deadline=None)
@given(lengths=lengths, first=st.integers(40, 80), system=st.integers(0, 90))
def test_every_prompt_has_exactly_the_traces_tokens(
    template: Template, vocabulary: Vocabulary, lengths: list[tuple[int, int]], first: int,
    system: int,
) -> None:  # fmt: skip
    session = grown([(1, first), *lengths], system)
    text = PromptText(vocabulary, "scope")
    marker = cache_marker(vocabulary.words, "play")
    for k, (turn, cuts) in enumerate(zip(session.turns, layouts(session, vocabulary), strict=True)):
        messages = text.messages(session, k, cuts, marker)
        assert template.tokens(messages) == turn.input_tokens
        roles = [m["role"] for m in messages if m["role"] != "system"]
        assert roles == ["user", *["assistant", "user"] * (len(roles) // 2)]
        first_user = next(m for m in messages if m["role"] == "user")
        assert first_user["content"].split()[:8] == marker


def rendered(session: Session, vocabulary: Vocabulary, marker: list[str]) -> list[tuple[int, ...]]:
    text = PromptText(vocabulary, "scope")
    cuts = layouts(session, vocabulary)
    return [
        chat_prompt(text.messages(session, k, cuts[k], marker)).ids
        for k in range(len(session.turns))
    ]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@settings(max_examples=150, deadline=None)
@given(lengths=lengths, system=st.integers(0, 60))
def test_shared_blocks_are_a_shared_prefix_on_the_server(
    lengths: list[tuple[int, int]], system: int
) -> None:
    session = grown([(1, 60), *lengths], system)
    prompts = rendered(session, MOCK, ["m"] * 8)
    seen = SeenBlocks()
    for k, turn in enumerate(session.turns):
        hit = hit_tokens(turn, 4, seen)
        seen.add(turn.blocks)
        reused = max((shared(prompts[k], before) for before in prompts[:k]), default=0)
        # a template's tokens lie at the end of the prompt too: up to 2 positions of shift
        assert reused >= hit - 2


def test_two_plays_share_the_system_prompt_and_nothing_else() -> None:
    session = grown([(1, 60), (5, 20)], 24)
    one = rendered(session, MOCK, cache_marker(MOCK.words, "1"))
    other = rendered(session, MOCK, cache_marker(MOCK.words, "2"))
    assert shared(one[1], other[1]) == 25  # 24 and the mark of the user's message


def test_a_history_that_was_rewritten_is_shared_up_to_the_rewriting() -> None:
    turns = [
        Turn(start=0, delay=0, input_tokens=80, output_tokens=8, blocks=to_runs(range(20))),
        Turn(start=1, delay=1, input_tokens=120, output_tokens=8, blocks=to_runs(range(30))),
        Turn(start=2, delay=1, input_tokens=60, output_tokens=8,
             blocks=to_runs([*range(8), *range(50, 57)])),
    ]  # fmt: skip
    session = Session(id="s", turns=tuple(turns), block_tokens=4, system_tokens=16)
    prompts = rendered(session, MOCK, ["m"] * 8)
    assert [len(p) for p in prompts] == [80, 120, 60]
    assert 30 <= shared(prompts[2], prompts[1]) <= 33


def test_a_miniature_of_the_generator_has_the_counts_of_its_trace() -> None:
    small = scaled(generate(3, 5), Scale(input=1 / 64))
    for session in small.sessions:
        for part in session.tree():
            lengths = [len(ids) for ids in rendered(part, MOCK, ["m"] * 8)]
            assert lengths == [turn.input_tokens for turn in part.turns]


def test_a_prompt_shorter_than_the_template_is_refused() -> None:
    with pytest.raises(PromptTooShort, match="take 10"):
        layouts(grown([(1, 8)], 0), MOCK)


def test_a_cold_prompt_is_new_from_its_first_word() -> None:
    one, other = (cold_messages(MOCK, key, 100) for key in ("a", "b"))
    assert Template().tokens(one) == 100
    first, second = (m[0]["content"].split()[:8] for m in (one, other))
    assert first != second
    with pytest.raises(PromptTooShort):
        cold_messages(MOCK, "c", 9)
