"""Bounds on JSON schemas: their depth, their size, and what is remembered of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from prime_inference.domain.errors import InvalidRequest
from prime_inference.wire.openai import bounds
from prime_inference.wire.openai.bounds import SchemaBounds, nesting

documents = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


def depth(value: Any) -> int:
    """Nesting, told by recursion."""
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(value=documents)
def test_nesting_is_the_depth_of_objects_and_arrays(value: Any):
    assert nesting(value) == depth(value)


def test_nesting_needs_no_stack():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert nesting(deep) == 100_001
    while deep:  # taken apart by hand: to free it whole would need a stack again
        (deep,) = deep


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (b"[]", "must be a JSON schema object"),
        (b"null", "must be a JSON schema object"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "nested deeper than 64"),
        (b'{"a":"%b"}' % (b"x" * bounds.MAX_SCHEMA_BYTES), "larger than 262144 bytes"),
        (b'{"a":"\xff"}', "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper|not valid JSON"),
    ],
    ids=["array", "null", "deep", "large", "bytes", "very deep"],
)
def test_a_schema_beyond_the_bounds_is_refused_by_its_place(schema: bytes, words: str):
    with pytest.raises(InvalidRequest, match=words) as caught:
        SchemaBounds().check(Raw(schema), "tools[3].function.parameters")
    assert caught.value.param == "tools[3].function.parameters"


def test_a_schema_is_looked_at_once_and_its_text_is_not_kept():
    schemas = SchemaBounds()
    raw = Raw(b'{"title":"a secret of the client"}')
    schemas.check(raw, "a")
    schemas.check(raw, "b")
    (remembered,) = schemas._passed
    assert len(remembered) == 32
    assert b"secret" not in remembered


def test_a_schema_that_was_refused_is_refused_again():
    schemas = SchemaBounds()
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            schemas.check(Raw(b"[]"), "a")


def test_only_so_many_schemas_are_remembered():
    schemas = SchemaBounds()
    for number in range(bounds.MAX_SCHEMAS_REMEMBERED + 10):
        schemas.check(Raw(json.dumps({"title": number}).encode()), "a")
    assert len(schemas._passed) == bounds.MAX_SCHEMAS_REMEMBERED
