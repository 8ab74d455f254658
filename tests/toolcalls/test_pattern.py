"""Patterns as grammar: what is written matches, and what is not translated is refused."""

from __future__ import annotations

import re

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.grammar import Grammar
from prime_inference.toolcalls.pattern import Unsupported, parse
from prime_inference.toolcalls.pattern_rules import JSON_STRING, TAG_TEXT, expression
from prime_inference.toolcalls.shapes import Text
from tests.toolcalls.as_regex import compiled, rules_of


def accepts(pattern: str, text: str, *, spelling=TAG_TEXT, **bounds) -> bool:
    grammar = Grammar()
    body, _ = expression(grammar, "p", Text(patterns=(pattern,), **bounds), spelling)
    rules = rules_of(grammar.text(body))
    return compiled(rules.pop("root"), rules).fullmatch(text) is not None


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^[a-z]{2,3}$", ["ab", "abc"], ["a", "abcd", "aB"]),
        ("b+", ["b", "abba", "\nb\n"], ["", "a"]),
        ("^a|b$", ["ax", "xb", "ab"], ["xa", "bx"]),
        ("^(red|green)$", ["red", "green"], ["blue", "redgreen"]),
        ("^(?:ab)*$", ["", "abab"], ["a", "aba"]),
        ("^(?<year>\\d{4})-\\d\\d$", ["2026-01"], ["26-01", "2026-1"]),
        ("^[^a-c]$", ["d", "é", "\n"], ["a", "dd"]),
        ("^[\\w.-]+@[\\w.-]+$", ["a.b@c-d.e"], ["a b@c", "@c"]),
        ("^\\s*$", ["", " \t\u00a0"], ["x"]),
        ("^\\S$", ["x", "上"], [" "]),
        ("^.$", ["x", "🎉"], ["\n", ""]),
        ("^a{3}b{2,}$", ["aaabb", "aaabbbb"], ["aabb", "aaab"]),
        ("^\\u00e9\\x41\\t$", ["éA\t"], ["eA\t"]),
        ("^x{$", ["x{"], ["x"]),
        ("^a+?b??$", ["a", "aab"], ["b"]),
        ("^$", [""], ["x"]),
        ("(^a)", ["ab"], ["ba"]),
    ],
)  # fmt: skip
def test_a_pattern_writes_what_it_matches(pattern, yes, no):
    assert [text for text in yes if not accepts(pattern, text)] == []
    assert [text for text in no if accepts(pattern, text)] == []


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)b", "(?!x)", "(?<=a)b", "\\bword\\b", "(a)\\1", "\\p{L}", "a$b", "a**", "(", ")",
     "(b^a)", "[b-a]", "[\\d-z]", "a{2001}", "(a{1000}){1000}", "x" * 1001,
     "(" * 50 + "a" + ")" * 50, "^*", "\\ud800", "\\u{1F600}", "a{3,2}", "*", "\\"],
)  # fmt: skip
def test_what_a_grammar_cannot_say_is_refused(pattern):
    with pytest.raises(Unsupported):
        parse(pattern)


atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", "\\d", "\\w", ".", "é", "\\.", "-", '"', "\\\\"])
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(
            lambda p: f"({p[0]}){p[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=300)
@given(pattern=patterns, start=st.booleans(), end=st.booleans(),
       text=st.text('ab0é.-"\\ \n_', max_size=6))  # fmt: skip
def test_a_pattern_writes_the_strings_that_a_validator_accepts(pattern, start, end, text):
    pattern = ("^" if start else "") + pattern + ("$" if end else "")
    valid = jsonschema_rs.validator_for({"pattern": pattern}).is_valid(text)
    assert accepts(pattern, text) == valid


def test_inside_json_characters_are_escaped():
    assert accepts("^.$", '\\"', spelling=JSON_STRING)
    assert accepts("^[\\n]$", "\\n", spelling=JSON_STRING)
    assert not accepts("^.$", '"', spelling=JSON_STRING)
    assert not accepts("^[\\n]$", "\n", spelling=JSON_STRING)


def test_in_tags_no_pattern_writes_the_beginning_of_a_tag():
    assert not accepts("^.$", "<")
    with pytest.raises(Unsupported):
        accepts("^<b>$", "<b>")


def test_the_length_of_a_repeated_class_is_kept():
    assert accepts("^[a-z]*$", "abc", shortest=2, longest=3)
    assert not accepts("^[a-z]*$", "abcd", shortest=2, longest=3)
    assert re.fullmatch("[a-z]*", "abcd")
