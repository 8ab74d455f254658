"""What every store of responses does."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prime_inference.adapters.memory.responses import MemoryResponseStore
from prime_inference.adapters.sqlite.responses import SqliteResponseStore
from prime_inference.ports.responses import ResponseStore, StoredResponse, StoreUnavailable

LIMIT = 1000
Make = Callable[[Path], ResponseStore]

STORES: dict[str, Make] = {
    "memory": lambda folder: MemoryResponseStore(LIMIT),
    "sqlite": lambda folder: SqliteResponseStore(folder / "responses.sqlite", LIMIT),
}


@pytest_asyncio.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    store = STORES[request.param](tmp_path)
    yield store
    await store.close()


def response(name: str, previous: str | None = None, **fields: Any) -> StoredResponse:
    return StoredResponse(
        **{
            "id": name,
            "owner": "key-1",
            "previous": previous,
            "items": b"[]",
            "inputs": 1,
            "body": b"{}",
            "expires_at": 100.0,
            **fields,
        }
    )


async def test_what_is_put_is_got(store: ResponseStore):
    kept = response("a", body='{"text":"é"}'.encode())
    await store.put(kept, 0)
    assert await store.get("key-1", "a", 0) == kept
    assert await store.get("key-1", "b", 0) is None


async def test_another_owner_finds_nothing_and_removes_nothing(store: ResponseStore):
    await store.put(response("a"), 0)
    await store.put(response("b", "a", owner="key-2"), 0)
    assert await store.get("key-2", "a", 0) is None
    assert await store.conversation("key-2", "a", 0) is None
    assert await store.conversation("key-2", "b", 0) is None  # goes on from what is not its own
    assert not await store.remove("key-2", "a")
    assert await store.get("key-1", "a", 0) is not None


async def test_a_conversation_is_all_its_turns_oldest_first(store: ResponseStore):
    for name, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "b")):
        await store.put(response(name, previous, items=name.encode()), 0)
    assert await store.conversation("key-1", "c", 0) == [b"a", b"b", b"c"]
    assert await store.conversation("key-1", "a", 0) == [b"a"]


async def test_a_conversation_that_lost_a_turn_is_none(store: ResponseStore):
    for turn in (response("a"), response("b", "a"), response("c", "b")):
        await store.put(turn, 0)
    assert await store.remove("key-1", "b")
    assert not await store.remove("key-1", "b")
    assert await store.conversation("key-1", "c", 0) is None
    assert await store.get("key-1", "c", 0) is not None


async def test_what_has_expired_is_not_there(store: ResponseStore):
    await store.put(response("a", expires_at=10.0), 0)
    await store.put(response("b", "a"), 0)
    assert await store.get("key-1", "a", 9.9) is not None
    assert await store.get("key-1", "a", 10) is None
    assert await store.conversation("key-1", "b", 10) is None


async def test_the_oldest_of_an_owner_give_way_and_nobody_elses(store: ResponseStore):
    await store.put(response("theirs", owner="key-2", body=b"x" * 300), 0)
    for number in range(5):
        await store.put(response(f"r{number}", body=b"x" * 300), 0)
    held = [await store.get("key-1", f"r{number}", 0) is not None for number in range(5)]
    assert held == [False, False, True, True, True]
    assert await store.get("key-2", "theirs", 0) is not None


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()}


async def test_a_file_outlives_its_store_and_is_its_owners_only(tmp_path: Path):
    path = tmp_path / "responses.sqlite"
    first = SqliteResponseStore(path)
    await first.put(response("a"), 0)
    assert modes(tmp_path) == {0o600}
    await first.close()
    second = SqliteResponseStore(path)
    assert await second.get("key-1", "a", 0) == response("a")
    await second.close()


async def test_what_was_removed_or_has_expired_is_not_in_the_file_any_more(tmp_path: Path):
    path = tmp_path / "responses.sqlite"
    store = SqliteResponseStore(path)
    await store.put(response("a", body=b"a secret of mine"), 0)
    await store.put(response("b", body=b"a secret of yours", expires_at=5.0), 0)
    await store.remove("key-1", "a")
    await store.put(response("c"), 5)
    await store.close()
    assert b"secret" not in path.read_bytes()


async def test_a_file_that_cannot_be_used_is_said_to_be_unavailable(tmp_path: Path):
    path = tmp_path / "responses.sqlite"
    path.write_bytes(b"this is no database" * 100)
    store = SqliteResponseStore(path)
    with pytest.raises(StoreUnavailable):
        await store.put(response("a"), 0)
    with pytest.raises(StoreUnavailable):
        await store.get("key-1", "a", 0)
    await store.close()
