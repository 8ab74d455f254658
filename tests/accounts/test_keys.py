"""Keys over their life: rotation with overlap, revocation, expiry, scopes; and limits' windows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from prime_inference.accounts.directory import (
    Directory,
    Records,
    check_endpoint,
    check_model,
    check_peer,
)
from prime_inference.domain import keys as api_keys
from prime_inference.domain.errors import InvalidRequest, PermissionDenied
from prime_inference.domain.keys import MOST_EARLIER, Scope
from prime_inference.domain.limits import Limit, LimitKind, window_end, window_start

NOW = 1_000.0


def test_a_rotated_key_works_with_both_texts_during_the_overlap():
    old, key = api_keys.create("t", name="", created_at=1.0)
    new, rotated = api_keys.rotate(key, now=NOW, overlap_seconds=60)
    assert rotated.key_id == key.key_id == api_keys.parse(new)
    assert api_keys.verify(new, rotated, NOW)
    assert api_keys.verify(old, rotated, NOW + 59)
    assert not api_keys.verify(old, rotated, NOW + 60)
    assert not api_keys.verify(old, api_keys.rotate(key, now=NOW, overlap_seconds=0)[1], NOW)


def test_every_earlier_text_works_until_its_own_end():
    old, key = api_keys.create("t", name="", created_at=1.0)
    middle, key = api_keys.rotate(key, now=NOW, overlap_seconds=60)
    new, key = api_keys.rotate(key, now=NOW + 10, overlap_seconds=20)

    def working(at: float) -> list[bool]:
        return [api_keys.verify(text, key, at) for text in (old, middle, new)]

    assert working(NOW + 10) == [True, True, True]
    assert working(NOW + 30) == [True, False, True]
    assert working(NOW + 60) == [False, False, True]
    _, key = api_keys.rotate(key, now=NOW + 30, overlap_seconds=0)  # as after a leak
    assert working(NOW + 30) == [False, False, False]


def test_a_key_has_a_bounded_number_of_earlier_texts():
    _, key = api_keys.create("t", name="", created_at=1.0)
    for number in range(MOST_EARLIER):
        _, key = api_keys.rotate(key, now=NOW + number, overlap_seconds=60)
    with pytest.raises(InvalidRequest, match="ends in 10 s"):
        api_keys.rotate(key, now=NOW + 50, overlap_seconds=60)
    _, key = api_keys.rotate(key, now=NOW + 60, overlap_seconds=60)  # the first has ended
    assert len(key.earlier) == MOST_EARLIER
    _, key = api_keys.rotate(key, now=NOW + 60, overlap_seconds=0)
    assert key.earlier == ()


def test_a_key_ends_when_it_is_revoked_or_its_time_is_over():
    _, key = api_keys.create("t", name="", created_at=1.0)
    assert not api_keys.ended(key, NOW)
    assert api_keys.ended(replace(key, revoked_at=2.0), NOW)
    assert api_keys.ended(replace(key, expires_at=NOW), NOW)
    assert not api_keys.ended(replace(key, expires_at=NOW + 1), NOW)


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        (None, True),
        (Scope(), True),
        (Scope(models=frozenset({"a/b"})), True),
        (Scope(models=frozenset({"a/c"})), False),
        (Scope(routes=frozenset({"embeddings"})), False),
        (Scope(routes=frozenset({"chat/completions"})), True),
        (Scope(networks=frozenset({"10.0.0.0/8", "127.0.0.0/8"})), True),
        (Scope(networks=frozenset({"10.0.0.0/8"})), False),
        (Scope(networks=frozenset({"::/0"})), False),
    ],
)
def test_a_key_is_for_its_scope_only(scope: Scope | None, allowed: bool):
    _, key = api_keys.create("t", name="", created_at=1.0)
    key = replace(key, scope=scope)

    def check() -> None:
        check_endpoint(key, "chat/completions")
        check_model(key, "a/b")
        check_peer(key, "127.0.0.1")

    if allowed:
        check()
    else:
        with pytest.raises(PermissionDenied):
            check()


def test_limits_match_all_that_they_name():
    limits = [
        Limit("1", LimitKind.CONCURRENCY, 1),
        Limit("2", LimitKind.CONCURRENCY, 1, key_id="k"),
        Limit("3", LimitKind.CONCURRENCY, 1, tenant="t", model="m"),
        Limit("4", LimitKind.CONCURRENCY, 1, model="other"),
    ]
    directory = Directory.of(Records(limits=limits))
    assert [limit.id for limit in directory.limits("k", "t", "m")] == ["1", "2", "3"]
    assert [limit.id for limit in directory.limits("x", "t", "other")] == ["1", "4"]
    assert directory.limits("k", "t", "m") is directory.limits("k", "t", "m")


@pytest.mark.parametrize(
    ("kind", "start", "end"),
    [
        (LimitKind.BUDGET_DAILY, "2026-12-31", "2027-01-01"),
        (LimitKind.BUDGET_WEEKLY, "2026-12-28", "2027-01-04"),
        (LimitKind.BUDGET_MONTHLY, "2026-12-01", "2027-01-01"),
    ],
)
def test_budgets_begin_anew_at_midnight_utc(kind: LimitKind, start: str, end: str):
    moment = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert window_start(kind, moment) * 86_400 == _timestamp(start)
    assert window_end(kind, moment) == _timestamp(end)
    assert window_start(kind, _timestamp(end)) * 86_400 == _timestamp(end)


def test_a_total_budget_never_begins_anew():
    assert window_start(LimitKind.BUDGET_TOTAL, NOW) == 0
    assert window_end(LimitKind.BUDGET_TOTAL, NOW) is None


def _timestamp(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
