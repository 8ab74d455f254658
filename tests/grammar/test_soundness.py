"""What the compiled grammar lets a model write, the parser reads and the schema accepts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.constraint import structural_tag
from prime_inference.toolcalls.format import load
from prime_inference.toolcalls.parser import ReasoningMode, parse
from prime_inference.toolcalls.tools import read_choice, read_tools
from tests.grammar.engine import pretty, sample
from tests.toolcalls.strategies import tool_calls

FORMATS = sorted(load())

# Without shrinking, which compiles thousands of grammars: a schema that fails is small anyway.
compiling = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("mode", ["none", "opened", "optional"])
@pytest.mark.parametrize("name", FORMATS)
@compiling
@given(drawn=tool_calls(), named=st.booleans(), parallel=st.booleans(), seed=st.integers(0, 2**32))
def test_a_required_call_is_read_and_valid(
    name: str, mode: ReasoningMode, drawn: Any, named: bool, parallel: bool, seed: int
):
    form, tools = load()[name], read_tools(drawn[0])
    raw: Any = {"type": "function", "function": {"name": "tool_0"}} if named else "required"
    constraint = structural_tag(
        form, tools, read_choice(raw, tools), parallel=parallel, reasoning=mode
    )
    text = sample(constraint, seed)
    message = parse(text, form, tools, reasoning=mode)
    assert message.calls, pretty(text)
    assert message.content is None, pretty(text)
    if constraint.relaxed:
        return  # what is relaxed is published, and judged by validation
    for call in message.calls:
        assert call.problems == (), pretty(text)
    if named or not parallel:
        assert len(message.calls) == 1
    if named:
        assert message.calls[0].name == "tool_0"


@pytest.mark.parametrize("name", FORMATS)
@compiling
@given(drawn=tool_calls(), seed=st.integers(0, 2**32))
def test_a_call_made_freely_is_valid(name: str, drawn: Any, seed: int):
    form, tools = load()[name], read_tools(drawn[0])
    constraint = structural_tag(form, tools)
    text = sample(constraint, seed, patience=200)
    message = parse(text, form, tools)
    if not constraint.relaxed:
        for call in message.calls:
            assert call.problems == (), pretty(text)
    begun = text.count(form.frame.trigger)
    assert bool(message.calls) == bool(begun), pretty(text)
