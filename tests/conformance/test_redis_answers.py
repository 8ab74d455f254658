"""Nothing that a store answers is an error of ours."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.adapters.redis import answers
from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.ports.coordination import (
    Beat,
    BreakerRecord,
    BreakerState,
    CoordinationUnavailable,
    Limit,
)
from tests.conformance.asks import block, granted, probe, request, trip
from tests.redis_server import RedisServer

POISON = ["nan", "-nan", "inf", "-inf", "1e308", "9007199254740993", "0.5", "", "x", "-1"]
ATOMS = st.one_of(
    st.none(),
    st.integers(),
    st.binary(max_size=6),
    st.sampled_from([
        b"open", b"closed", b"rate", b"d", b"nan", b"inf", b"-7", b"0", b"9" * 5000, 10**400,
        b"\xff", b"1_0", True,
    ]),
)  # fmt: skip
REPLIES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=7), max_leaves=30)
FIELDS = st.tuples(
    ATOMS, st.sampled_from([b"open", b"x"]), ATOMS, ATOMS, st.sampled_from([b"rate", b"y"]), ATOMS
).map(list)
READERS: list[Callable[[object], object]] = [
    answers.reading,
    answers.probe_grant,
    answers.record,
    answers.flag,
    lambda answer: answers.request_grant(answer, request("r", Limit("a", 1))),
    lambda answer: answers.block_grants(answer, 1),
]


@pytest.mark.parametrize("read", READERS)
def test_any_reply_is_an_answer_or_none(read: Callable[[object], object]) -> None:
    @given(
        REPLIES
        | FIELDS
        | st.tuples(ATOMS, FIELDS).map(list)
        | st.tuples(ATOMS, ATOMS, FIELDS).map(list)
    )
    def check(reply: object) -> None:
        with suppress(CoordinationUnavailable):
            read(reply)

    check()


@given(
    st.binary(max_size=30)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=2), inner),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_message_is_a_push_or_none(data: bytes) -> None:
    try:
        pushed = answers.push(data)
    except CoordinationUnavailable:
        return
    assert isinstance(pushed, Beat | BreakerRecord)


def test_what_is_nested_too_deep_is_no_push() -> None:
    with pytest.raises(CoordinationUnavailable):
        answers.push(b"[" * 100_000)


@pytest.mark.parametrize("value", POISON)
async def test_garbage_in_the_stores_own_fields_is_as_if_it_were_not_there(
    redis_server: RedisServer, value: str
) -> None:
    store = RedisCoordination(redis_server.url, learning_s=0, call_s=2, connect_s=2)
    for field in ("~beat", "~version", "~latest"):
        redis_server.command("HSET", "prime:breakers", field, value)
        await store.breakers(-1)
        assert (await store.trip(trip(field))).state is BreakerState.OPEN
        news = (await store.breakers(-1)).news
        assert news is not None
        assert field in {record.deployment for record in news.records}
    redis_server.command("SET", "prime:requests:{t}:a:latest", value)
    assert (await store.acquire(request("r", Limit("a", 1), scope="t"))).granted
    assert not (await store.acquire(request("s", Limit("a", 1), scope="t"))).granted
    for field in ("~latest", "~learning_until", "~epoch"):
        redis_server.command("HSET", "prime:{blocks}:d", field, value)
        assert await granted(store, block(f"a{field}", 1)) == 1
    await store.close()


@pytest.mark.parametrize("value", [*POISON, "[]", "{}", '"x"', "1e999", '{"x":1}', "null", "true"])
async def test_a_block_that_is_garbage_is_as_if_it_were_not_there(
    redis_server: RedisServer, value: str
) -> None:
    store = RedisCoordination(redis_server.url, learning_s=0, call_s=2, connect_s=2)
    assert await granted(store, block("a", 3)) == 3
    key = "prime:{blocks}:d"
    record = json.loads(redis_server.command("HGET", key, "h:a"))
    spoiled = value if value.startswith(("[", "{", '"', "n", "t")) else json.dumps(value)
    redis_server.command("HSET", key, "h:evil", value)
    for place, field in enumerate(record):
        fields = [json.dumps(name) + ":" + json.dumps(known) for name, known in record.items()]
        fields[place] = f"{json.dumps(field)}:{spoiled}"
        redis_server.command("HSET", key, f"h:evil-{field}", "{" + ",".join(fields) + "}")
    grant = await granted(store, block("b", 1))
    assert 0 <= grant <= 1  # texts are names too, so that some of them hold their slots
    for field in ("", *record):
        redis_server.command("HDEL", key, f"h:evil-{field}")
    assert await granted(store, block("c", 4)) == 4
    await store.close()


async def test_a_block_that_would_be_held_for_good_is_not_believed(
    redis_server: RedisServer,
) -> None:
    store = RedisCoordination(redis_server.url, learning_s=0, call_s=2, connect_s=2)
    key = "prime:{blocks}:d"
    await granted(store, block("a", 1, ttl_s=10))
    record = json.loads(redis_server.command("HGET", key, "h:a"))
    far = {"held": 1_000_000, "ends": "9007199254740990"}
    redis_server.command("HSET", key, "h:evil", json.dumps(record | far))
    none = {"capacity": 0}
    redis_server.command("HSET", key, "h:none", json.dumps(record | none))
    assert await granted(store, block("b", 4, ttl_s=10)) == 4
    await store.close()


@pytest.mark.parametrize(
    "planted",
    [
        {"open_until": "9007199254740990"},
        {"state": "half_open", "tickets": {"x": "9007199254740990"}},
        {"answers": -1_000_000_000},
        {"trips": -50},
        {"epoch": "9007199254740991"},
    ],
)
async def test_a_breaker_that_would_be_open_for_good_is_not_believed(
    redis_server: RedisServer, planted: dict[str, object]
) -> None:
    store = RedisCoordination(redis_server.url, learning_s=0, call_s=2, connect_s=2)
    await store.trip(trip(open_s=0.001))
    record = json.loads(redis_server.command("HGET", "prime:breakers", "d:d"))
    redis_server.command("HSET", "prime:breakers", "d:d", json.dumps(record | planted))
    redis_server.command("HSET", "prime:breakers", "~version", "9007199254740991")
    probed = await store.probe(probe("a"))
    assert probed.granted or probed.record.state is BreakerState.CLOSED
    reopened = await store.trip(trip())
    assert reopened.epoch <= (time.time() + 60) * 1e6
    await store.close()


@pytest.mark.parametrize("grants", [0, 1, 3])
def test_a_reply_with_more_or_less_than_was_asked_for_is_no_answer(grants: int) -> None:
    reply = [[b"1", 1, 0, 1, 0, 0, 0, 0, 8, b"0"]] * grants
    with pytest.raises(CoordinationUnavailable):
        answers.block_grants(reply, 2)
    if grants:
        assert len(answers.block_grants(reply, grants)) == grants
