"""Deltas of tool calls as OpenAI sends them, whatever came."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.errors import ToolCallBroken, UpstreamMalformed
from prime_inference.wire.openai.answers import FunctionDelta, ToolCallDelta, decode_answer
from prime_inference.wire.openai.calls import CallRepair, CallRules, require_objects


def piece(
    arguments: str | None = None, *, index: int | None = 0, identity: str | None = None,
    name: str | None = None,
) -> ToolCallDelta:  # fmt: skip
    return ToolCallDelta(index, identity, None, FunctionDelta(name, arguments))


def repaired(*pieces: ToolCallDelta, rules: CallRules | None = None) -> CallRepair:
    """After every piece, each in a delta of its own, with what was sent checked on the way."""
    repair = CallRepair("x", rules or CallRules())
    sent = [delta for one in pieces for delta in repair.repair([one])]
    sent += repair.finish()
    check(sent, repair)
    return repair


def check(sent: list[ToolCallDelta], repair: CallRepair) -> None:
    """What holds for every stream of calls: what was sent adds up to the calls."""
    arguments: dict[int, str] = {}
    ids = []
    for delta in sent:
        assert delta.index is not None
        assert delta.function is not None
        if delta.index not in arguments:
            assert delta.index == len(arguments)
            assert delta.type == "function"
            assert delta.function.name is not None
            ids.append(delta.id)
            arguments[delta.index] = ""
        else:
            assert (delta.id, delta.type, delta.function.name) == (None, None, None)
        arguments[delta.index] += delta.function.arguments or ""
    assert all(ids)
    assert len(ids) == len(set(ids))
    assert list(arguments.values()) == [call.arguments for call in repair.calls]
    assert all(arguments.values())


def calls(repair: CallRepair) -> list[tuple[str | None, str]]:
    return [(call.name, call.arguments) for call in repair.calls]


def opening(name: str, identity: str | None, arguments: str = "", index: int | None = 0) -> Any:
    return piece(arguments, index=index, identity=identity, name=name)


REPAIRS: dict[str, tuple[list[ToolCallDelta], list[tuple[str, str]]]] = {
    "two functions with one id at one index": (
        [opening("f", "a"), piece('{"a":1}'), opening("g", "a"), piece('{"a":2}')],
        [("f", '{"a":1}'), ("g", '{"a":2}')],
    ),
    "one function twice with one id at one index": (
        [opening("f", "a"), piece('{"a"'), piece(":1}"), opening("f", "a"), piece('{"a":2}')],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "one function twice, opened with its first arguments": (
        [opening("f", "a", '{"a"'), piece(":1}"), opening("f", "a", '{"a"'), piece(":2}")],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "one function twice, whole, with one id at one index": (
        [opening("f", "a", '{"a":1}'), opening("f", "a", '{"a":2}')],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "one function twice with one id on every piece at one index": (
        [opening("f", "a"), piece('{"a":1}', identity="a"), opening("f", "a"),
         piece("{}", identity="a")],
        [("f", '{"a":1}'), ("f", "{}")],
    ),
    "one function twice with name and id on every piece at one index": (
        [opening("f", "a", '{"a"'), opening("f", "a", ":1}"), opening("f", "a", '{"a'),
         opening("f", "a", '":2}')],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "an object inside arguments, with the name on every piece": (
        [opening("f", "a", '{"a":'), opening("f", "a", '{"b":1}'), opening("f", "a", "}")],
        [("f", '{"a":{"b":1}}')],
    ),
    "a first call that was not finished, one id, one index": (
        [opening("f", "a"), piece('{"a":1'), opening("f", "a"), piece('{"a":2}')],
        [("f", '{"a":1'), ("f", '{"a":2}')],
    ),
    "the name once more at the end is no call": (
        [opening("f", "a"), piece('{"a":1}'), opening("f", "a")],
        [("f", '{"a":1}')],
    ),
    "the name once more in the middle is no call": (
        [opening("f", "a"), piece('{"a"'), opening("f", "a"), piece(":1}")],
        [("f", '{"a":1}')],
    ),
    "white space behind whole arguments is no call": (
        [opening("f", "a", "{}"), piece("\n", identity="b")],
        [("f", "{}\n")],
    ),
    "an id of its own and the name on every piece": (
        [opening("f", "a", '{"a"'), opening("f", "b", ":1"), opening("f", "c", "}"),
         opening("f", "d", "")],
        [("f", '{"a":1}')],
    ),
    "one function twice at one index, each with an id": (
        [opening("f", "a"), opening("f", "b"), piece("{}")],
        [("f", "{}"), ("f", "{}")],
    ),
    "one id, and an index of its own on every piece": (
        [opening("f", "a"), piece('{"a"', index=1, identity="a"),
         piece(":1}", index=2, identity="a")],
        [("f", '{"a":1}')],
    ),
    "no ids, no indices, one function twice": (
        [opening("f", None, index=None), piece('{"a":1}', index=None),
         opening("f", None, index=None), piece("{}", index=None)],
        [("f", '{"a":1}'), ("f", "{}")],
    ),
    "no ids, no indices": (
        [opening("f", None, index=None), piece('{"a":1}', index=None),
         opening("g", None, index=None), piece("{}", index=None)],
        [("f", '{"a":1}'), ("g", "{}")],
    ),
    "the same function twice, whole, at one index, without ids": (
        [opening("f", None, '{"a":1}'), opening("f", None, '{"a":2}')],
        [("f", '{"a":1}'), ("f", '{"a":2}')],
    ),
    "name and id on every piece": (
        [opening("f", "a", '{"a"'), opening("f", "a", ":1}"), opening("f", "a", "")],
        [("f", '{"a":1}')],
    ),
    "a name on every piece": (
        [opening("f", None, '{"a"'), opening("f", None, ":1}"), opening("f", None, "")],
        [("f", '{"a":1}')],
    ),
    "an id of its own on every piece": (
        [opening("f", "a", '{"a"'), piece(":1", identity="b"), piece("}", identity="c")],
        [("f", '{"a":1}')],
    ),
    "an index of its own on every piece": (
        [opening("f", "a", '{"a"', index=0), piece(":1", index=1), piece("}", index=2)],
        [("f", '{"a":1}')],
    ),
    "a name behind the arguments": (
        [piece('{"a"', identity="a"), piece(":1}", name="f")],
        [("f", '{"a":1}')],
    ),
    "no name at all": ([piece("{}", identity="a")], [("", "{}")]),
    "no arguments": ([opening("f", "a")], [("f", "{}")]),
    "null arguments": ([ToolCallDelta(0, "a", None, FunctionDelta("f", None))], [("f", "{}")]),
    "no function": ([ToolCallDelta(0, "a")], [("", "{}")]),
    "an empty id": ([opening("f", "", "{}"), opening("g", "", "{}", index=1)],
                    [("f", "{}"), ("g", "{}")]),
    "one id for two calls": ([opening("f", "a", "{}"), opening("g", "a", "{}", index=1)],
                             [("f", "{}"), ("g", "{}")]),
}  # fmt: skip


@pytest.mark.parametrize("name", REPAIRS)
def test_what_is_wrong_with_a_stream_of_calls_is_repaired(name: str):
    pieces, expected = REPAIRS[name]
    assert calls(repaired(*pieces)) == expected


def test_an_id_is_kept_as_it_came():
    assert repaired(opening("f", "functions.f:0")).repair([]) == []
    sent = CallRepair("x").repair([opening("f", "functions.f:0")])
    assert sent[0].id == "functions.f:0"


def test_the_caller_named_the_function_so_that_is_its_name():
    assert calls(repaired(piece("{}"), rules=CallRules(only="f"))) == [("f", "{}")]
    named = CallRules(only="f")
    assert calls(repaired(opening("g", "a", "{}"), rules=named)) == [("g", "{}")]  # never renamed


def test_of_parallel_calls_that_were_not_allowed_the_first_is_given():
    pieces = [
        opening("f", "a", index=0), opening("g", "b", index=1),
        piece('{"a"', index=0), piece("{", index=1), piece(":1}", index=0), piece("}", index=1),
    ]  # fmt: skip
    assert calls(repaired(*pieces, rules=CallRules(parallel=False))) == [("f", '{"a":1}')]


@pytest.mark.parametrize(
    "again",
    [
        opening("f", "a", '{"n":1}'),
        piece('{"n":1}'),
        piece('{"n":1}', identity="a"),
        piece('{"n":1}', index=None),
    ],
)
def test_a_whole_call_said_once_more_is_one_call(again: ToolCallDelta):
    pieces = [opening("f", "a"), piece('{"n"'), piece(":1}")]
    assert calls(repaired(*pieces, again)) == [("f", '{"n":1}')]


@pytest.mark.parametrize(
    "other",
    [
        opening("f", "b", '{"n":1}'),  # the same again, under an id of its own
        opening("f", None, '{"n":1}'),
        opening("f", "a", '{"n":2}'),
        opening("g", "a", '{"n":1}'),
        opening("f", "b", '{"n":1}', index=1),
    ],
)
def test_what_differs_is_another_call(other: ToolCallDelta):
    assert len(repaired(opening("f", "a", '{"n":1}'), other).calls) == 2


def test_where_no_call_is_wanted_none_is_given_and_that_is_known():
    repair = repaired(opening("f", "a", "{}"), piece("{}", index=1), rules=CallRules(none=True))
    assert (calls(repair), repair.unwanted) == ([], True)
    assert repair.finish_reason("tool_calls") == "stop"


@pytest.mark.parametrize(("came", "given"), [("", "{"), ('{"a": 1', '{"a": 1'), ("{}", "{}")])
def test_a_broken_call_is_not_completed_and_is_no_object(came: str, given: str):
    repair = CallRepair("x", CallRules())
    sent = repair.repair([opening("f", "a", came)]) + repair.finish(broken={0})
    check(sent, repair)
    assert calls(repair) == [("f", given)]
    with pytest.raises(ToolCallBroken):
        require_objects(repair.calls)


@pytest.mark.parametrize(
    ("reason", "only", "called", "given"),
    [
        ("stop", None, True, "tool_calls"),
        ("function_call", None, True, "tool_calls"),
        ("tool_calls", "f", True, "stop"),
        ("tool_calls", None, False, "stop"),
        ("length", None, True, "length"),
        ("content_filter", None, True, "content_filter"),
    ],
)
def test_finish_reasons_are_openais(reason: str, only: str | None, called: bool, given: str):
    repair = CallRepair("x", CallRules(only=only))
    if called:
        repair.repair([opening("f", "a", "{}")])
    assert repair.finish_reason(reason) == given


@given(
    st.lists(
        st.builds(
            piece,
            st.sampled_from(["", "{", "}", "{}", '{"a":', "1", None]),
            index=st.sampled_from([None, 0, 1, 2]),
            identity=st.sampled_from([None, "", "a", "b"]),
            name=st.sampled_from([None, "", "f", "g"]),
        ),
        max_size=12,
    ),
    st.booleans(),
    st.sampled_from([None, "f"]),
)
def test_whatever_comes_is_sent_in_order_and_nothing_of_it_is_lost(
    pieces: list[ToolCallDelta], parallel: bool, only: str | None
):
    given = Counter("".join(one.function.arguments or "" for one in pieces if one.function))
    repair = repaired(*pieces, rules=CallRules(parallel=parallel, only=only))
    got = Counter("".join(call.arguments for call in repair.calls))
    if parallel:
        texts = [one.function.arguments or "" for one in pieces if one.function]
        said = [text for text in texts if any(c.arguments.startswith(text) for c in repair.calls)]
        again = Counter("".join(text for text in said if text.endswith("}")))
        assert not given - got - again  # whole arguments that are said again are said once
        empty = sum(call.arguments == "{}" for call in repair.calls)
        assert (got - given).total() <= 2 * empty  # the two characters of arguments made for it
    else:
        assert len(repair.calls) <= 1


def test_arguments_that_come_as_an_object_are_its_text():
    body = b"""{"choices":[{"message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":
        {"a":1.10,"b":12345678901234567890123,"c":"&lt;\\u00e9","d":null}}}]}}]}"""
    message = decode_answer(body).choices[0].message
    assert message is not None
    assert message.tool_calls is not None
    function = message.tool_calls[0].function
    assert function is not None
    assert function.arguments == '{"a":1.10,"b":12345678901234567890123,"c":"&lt;é","d":null}'


@pytest.mark.parametrize("arguments", ["7", "true"])
def test_arguments_of_another_kind_are_an_answer_that_cannot_be_read(arguments: str):
    body = '{"choices":[{"message":{"tool_calls":[{"function":{"arguments":NONE}}]}}]}'
    with pytest.raises(UpstreamMalformed):
        decode_answer(body.replace("NONE", arguments).encode())
