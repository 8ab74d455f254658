"""Embeddings, rebuilt: one for each input, in order, under our model's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.errors import UpstreamFailure, UpstreamMalformed
from prime_inference.wire.openai.embeddings import rebuild_embeddings


def answer(*indices: int, **fields: Any) -> bytes:
    data = [{"object": "embedding", "index": i, "embedding": [i + 0.5]} for i in indices]
    usage = {"prompt_tokens": 7, "total_tokens": 7}
    return json.dumps({"data": data, "usage": usage, "model": "theirs", **fields}).encode()


@given(order=st.permutations(range(6)))
def test_embeddings_come_in_the_order_of_their_inputs(order: list[int]):
    body, usage = rebuild_embeddings(answer(*order), model="a/b", inputs=6)
    document = json.loads(body)
    assert [item["embedding"] for item in document["data"]] == [[i + 0.5] for i in range(6)]
    assert document["model"] == "a/b"
    assert document["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert usage.prompt_tokens == 7


@pytest.mark.parametrize("indices", [(), (0,), (0, 0), (0, 2), (1, 2), (0, 1, 2)])
def test_another_number_of_embeddings_than_inputs_is_malformed(indices: tuple[int, ...]):
    with pytest.raises(UpstreamMalformed):
        rebuild_embeddings(answer(*indices), model="a/b", inputs=2)


def test_an_embedding_keeps_its_spelling():
    body = answer(0).replace(b"[0.5]", b'"AAAAPw=="')
    rebuilt, _ = rebuild_embeddings(body, model="a/b", inputs=1)
    assert json.loads(rebuilt)["data"][0]["embedding"] == "AAAAPw=="


@given(data=st.binary(max_size=50))
def test_no_bytes_raise_anything_but_an_upstream_failure(data: bytes):
    with pytest.raises(UpstreamFailure):
        rebuild_embeddings(data, model="a/b", inputs=1)
