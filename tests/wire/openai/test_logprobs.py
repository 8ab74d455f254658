"""Log probabilities: OpenAI's fields, and as many alternatives as were asked for."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.openai.answers import Answer, Choice
from prime_inference.wire.openai.logprobs import IMPOSSIBLE, keep_alternatives


def entry(token: str, **fields: Any) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": [*token.encode()], **fields}


def kept(logprobs: object, count: int) -> Any:
    answer = Answer(choices=[Choice(logprobs=Raw(msgspec.json.encode(logprobs)))])
    keep_alternatives(answer, count)
    return msgspec.json.decode(answer.choices[0].logprobs)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_token_keeps_its_own_fields_and_the_likeliest_alternatives(count: int):
    theirs = [entry(token, id=7) for token in "abc"]
    (token,) = kept({"content": [entry("a", id=7, top_logprobs=theirs)]}, count)["content"]
    assert token == entry("a", top_logprobs=[entry(token) for token in "abc"[:count]])


def test_a_token_without_alternatives_has_an_empty_list():
    (token,) = kept({"content": [{"token": "a", "logprob": -1}]}, 0)["content"]
    assert token == {"token": "a", "logprob": -1, "bytes": None, "top_logprobs": []}


def test_the_logarithm_of_nothing_is_a_number():
    impossible = entry("b", logprob=None)
    (token,) = kept({"content": [entry("a", top_logprobs=[impossible])]}, 1)["content"]
    assert token["top_logprobs"][0]["logprob"] == IMPOSSIBLE


def test_a_refusal_has_logprobs_too():
    refused = kept({"content": None, "refusal": [entry("no", id=1)]}, 0)
    assert refused == {"content": None, "refusal": [entry("no", top_logprobs=[])]}


def test_a_choice_without_logprobs_stays_without():
    assert kept(None, 5) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(
            st.sampled_from(["content", "token", "logprob", "bytes", "top_logprobs"]), inner
        ),
    )
)  # fmt: skip
def test_what_is_none_is_malformed(logprobs: Any):
    with contextlib.suppress(UpstreamMalformed):
        assert set(kept(logprobs, 2) or {}) <= {"content", "refusal"}
