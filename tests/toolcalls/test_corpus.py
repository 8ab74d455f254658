"""Every report of a broken tool call, and its relatives, under every way of cutting the text."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from prime_inference.toolcalls.events import ArgumentsPart, Message, collect
from prime_inference.toolcalls.format import format_named
from prime_inference.toolcalls.parser import Parser, parse
from tests.toolcalls import corpus_text, corpus_values
from tests.toolcalls.case import Case

CASES = [*corpus_values.CASES, *corpus_text.CASES]


def name_of(case: Case) -> str:
    return f"{case.bug}-{case.form}-{case.report}"


def read(case: Case, pieces: list[str]) -> Message:
    parser = Parser(format_named(case.form), case.tools, reasoning=case.mode)
    events = [event for piece in pieces for event in parser.feed(piece)]
    events += parser.finish()
    message = collect(events)
    for call in message.calls:
        parts = [e.text for e in events if isinstance(e, ArgumentsPart) and e.index == call.index]
        assert "".join(parts) == call.arguments
    return message


def whole(case: Case) -> Message:
    return parse(case.text, format_named(case.form), case.tools, reasoning=case.mode)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_reported_text_reads_as_it_should(case: Case):
    message = whole(case)
    assert [call.name for call in message.calls] == [name for name, _ in case.calls]
    for call, (_, arguments) in zip(message.calls, case.calls, strict=True):
        if isinstance(arguments, str):
            assert call.arguments == arguments
        else:
            assert json.loads(call.arguments) == arguments
            assert repr(json.loads(call.arguments)) == repr(arguments)  # True is not 1
    assert message.content == case.content
    assert message.reasoning == case.reasoning
    found = {problem.bucket.value for call in message.calls for problem in call.problems}
    assert found == set(case.buckets)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_it_reads_the_same_however_it_is_cut(case: Case):
    text, expected = case.text, whole(case)
    assert read(case, list(text)) == expected
    for place in range(0, len(text) + 1, 1 + len(text) // 2000):
        assert read(case, [text[:place], text[place:]]) == expected
    for size in (2, 3, 5, 8, 13):
        assert read(case, [text[i : i + size] for i in range(0, len(text), size)]) == expected


def test_every_report_has_three_relatives():
    counts = Counter(case.bug for case in CASES if case.bug)
    assert {bug: count for bug, count in counts.items() if count < 4} == {}
