"""Free names: every name but those that are declared, and no more states than are bounded."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.constraint import structural_tag
from prime_inference.toolcalls.format import format_named
from prime_inference.toolcalls.grammar import Grammar
from prime_inference.toolcalls.name_tree import TooManyNames, other_names
from prime_inference.toolcalls.tools import read_tools
from tests.toolcalls.as_regex import compiled, rules_of

names = st.text('abé"\\', max_size=4)


def rest(taken):
    reserved = "".join(sorted({*'"\\', *taken})).replace("\\", "\\\\")
    return f'[^{reserved}] ([^"\\\\] | "\\\\" [a-z"\\\\])*'


@settings(deadline=None)
@given(declared=st.sets(names, max_size=5), name=names)
def test_a_name_is_free_unless_it_is_declared(declared, name):
    grammar = Grammar()
    root = other_names(grammar, "t", declared, rest, unwritten='"\\')
    rules = rules_of(grammar.text(root))
    written = json.dumps(name, ensure_ascii=False)[1:-1]
    accepted = compiled(rules.pop("root"), rules).fullmatch(written) is not None
    if name in declared:
        assert not accepted
    elif not set(name) & set('"\\'):
        assert accepted


def test_the_tree_is_bounded():
    with pytest.raises(TooManyNames):
        other_names(Grammar(), "t", [f"{i:04}" * 16 for i in range(1000)], rest)


@pytest.mark.parametrize("form", ["hermes", "glm-4.7"])
def test_free_names_beside_very_many_are_not_offered(form):
    schema = {
        "type": "object",
        "properties": {f"{i:04}" * 16: {"type": "null"} for i in range(500)},
        "additionalProperties": {"type": "integer"},
    }
    built = structural_tag(format_named(form), read_tools([{"name": "f", "parameters": schema}]))
    assert [one.keyword for one in built.relaxed] == ["additionalProperties"]
