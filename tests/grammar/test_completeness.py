"""Every valid call, as the model's template writes it, is accepted by the grammar.

The exceptions are those that docs/tool-calls.md publishes, each of which has a test here.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.constraint import structural_tag
from prime_inference.toolcalls.format import ToolFormat, load
from prime_inference.toolcalls.json_rules import Unwritable
from prime_inference.toolcalls.tagged_call import TaggedCall
from prime_inference.toolcalls.tools import AUTO, ToolChoice, read_tools
from tests.grammar.engine import accepts, grammar_of, pretty
from tests.toolcalls.strategies import tool_calls

FORMATS = sorted(load())
REQUIRED = ToolChoice(mode="required")

compiling = settings(
    max_examples=80,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("name", FORMATS)
@compiling
@given(drawn=tool_calls(), required=st.booleans())
def test_a_valid_call_is_accepted(name: str, drawn: Any, required: bool):
    form, tools = load()[name], read_tools(drawn[0])
    try:
        text = form.render_all(drawn[1])
    except Unwritable:  # a closing tag inside a string
        assume(False)
    assume(not is_exception(form, drawn))
    constraint = structural_tag(form, tools, REQUIRED if required else AUTO)
    assert accepts(grammar_of(constraint), text), pretty(text)


def is_exception(form: ToolFormat, drawn: Any) -> bool:
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in drawn[0]}
    if not isinstance(form, TaggedCall):
        return False
    return any(
        unmarked_string(form, value, schemas[name]["properties"].get(key, {}))
        for name, arguments in drawn[1]
        for key, value in arguments.items()
    )


def unmarked_string(form: TaggedCall, value: Any, schema: Any) -> bool:
    """A string beside arrays or objects that begins like one of them, or with whitespace."""
    if form.style.after_other is not None or not isinstance(value, str):
        return False
    beside = repr(schema).count("'type': 'object'") + repr(schema).count("'type': 'array'")
    return beside > 0 and (value[:1] in tuple('[{ \t\r\n"<') or value == "")
