"""Responses in a SQLite file of one machine's state folder.

Statements run on one thread of their own, so that the event loop never waits for a disk.
A crash of the machine can lose the last ones (`synchronous = NORMAL`), never the file.
What is removed is overwritten (`secure_delete`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from prime_inference.ports.responses import StoredResponse, StoreUnavailable

T = TypeVar("T")

MAX_OWNER_BYTES = 256 * 1024 * 1024  # of disk for each key; thousands of turns of agents
BUSY_SECONDS = 5.0  # another process on the same file, e.g. a backup

SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    previous TEXT,
    items BLOB NOT NULL,
    inputs INTEGER NOT NULL,
    body BLOB NOT NULL,
    size INTEGER NOT NULL,
    expires_at REAL NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS responses_by_owner ON responses (owner, number, size);
CREATE INDEX IF NOT EXISTS responses_by_expiry ON responses (expires_at);
"""
EXPIRED = "DELETE FROM responses WHERE expires_at <= ?"
PUT = """
INSERT INTO responses (id, owner, previous, items, inputs, body, expires_at, size)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
OVER = """
DELETE FROM responses WHERE number IN (
    SELECT number FROM (
        SELECT number, sum(size) OVER (ORDER BY number DESC) AS held
        FROM responses WHERE owner = ?
    ) WHERE held > ?
)
"""
GET = """
SELECT id, owner, previous, items, inputs, body, expires_at FROM responses
WHERE id = ? AND owner = ? AND expires_at > ?
"""
CONVERSATION = """
WITH RECURSIVE turns (number, previous, depth) AS (
    SELECT number, previous, 0 FROM responses
    WHERE id = :id AND owner = :owner AND expires_at > :now
    UNION ALL
    SELECT r.number, r.previous, depth + 1
    FROM turns JOIN responses AS r ON r.id = turns.previous
    WHERE r.owner = :owner AND r.expires_at > :now
)
SELECT r.items, r.previous FROM turns JOIN responses AS r ON r.number = turns.number
ORDER BY depth DESC
"""
REMOVE = "DELETE FROM responses WHERE id = ? AND owner = ?"


class SqliteResponseStore:
    """Implements `ports.responses.ResponseStore`. The file is made on first use, 0600."""

    def __init__(self, path: Path, max_owner_bytes: int = MAX_OWNER_BYTES) -> None:
        self._path = path
        self._max = max_owner_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._connection: sqlite3.Connection | None = None

    async def put(self, response: StoredResponse, now: float) -> None:
        def put(connection: sqlite3.Connection) -> None:
            row = (*msgspec.structs.astuple(response), response.size)
            with connection:
                connection.execute(EXPIRED, (now,))
                connection.execute(PUT, row)
                connection.execute(OVER, (response.owner, self._max))

        await self._run(put)

    async def get(self, owner: str, response_id: str, now: float) -> StoredResponse | None:
        def get(connection: sqlite3.Connection) -> StoredResponse | None:
            row = connection.execute(GET, (response_id, owner, now)).fetchone()
            return None if row is None else StoredResponse(*row)

        return await self._run(get)

    async def conversation(
        self, owner: str, response_id: str, now: float
    ) -> Sequence[bytes] | None:
        def conversation(connection: sqlite3.Connection) -> Sequence[bytes] | None:
            asked = {"id": response_id, "owner": owner, "now": now}
            rows = connection.execute(CONVERSATION, asked).fetchall()
            whole = bool(rows) and rows[0][1] is None  # the first turn goes on from none
            return [items for items, _ in rows] if whole else None

        return await self._run(conversation)

    async def remove(self, owner: str, response_id: str) -> bool:
        def remove(connection: sqlite3.Connection) -> bool:
            with connection:
                return connection.execute(REMOVE, (response_id, owner)).rowcount > 0

        return await self._run(remove)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _run(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._on_thread, statement)

    def _on_thread(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._open()
            return statement(self._connection)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        self._path.touch(mode=0o600)
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS)
        connection.executescript(
            f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; "
            f"PRAGMA secure_delete = ON; {SCHEMA}"
        )
        return connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
