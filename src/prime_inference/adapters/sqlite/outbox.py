"""The outbox of one replica: a table in a file of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from prime_inference.adapters.sqlite.database import connect
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.outbox import OutboxUnavailable

TABLE = "CREATE TABLE IF NOT EXISTS outbox (place INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB)"
INSERT = "INSERT INTO outbox (event) VALUES (?)"
OLDEST = "SELECT place, event FROM outbox ORDER BY place LIMIT ?"
DELETE = "DELETE FROM outbox WHERE place <= ?"
COUNT = "SELECT count(*) FROM outbox"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageEvent).decode


class SqliteOutbox:
    """Implements `ports.outbox.Outbox`.

    Two connections: the event loop's never waits for the disk. It hands its pages to the
    operating system, which keeps them whatever becomes of the process; the shipper's
    connection writes them into the database file (a checkpoint) after each delete.
    """

    def __init__(self, path: Path) -> None:
        self._writer = connect(path, "normal")
        self._writer.execute("PRAGMA wal_autocheckpoint = 0")
        self._writer.execute(TABLE)
        self._shipper = connect(path, "normal")
        self._shipper.execute("PRAGMA wal_autocheckpoint = 0")

    def append(self, events: Sequence[UsageEvent]) -> None:
        writer = self._writer
        try:
            if len(events) == 1:  # one statement is a transaction of its own
                writer.execute(INSERT, (_encode(events[0]),))
                return
            writer.execute("BEGIN IMMEDIATE")
            try:
                writer.executemany(INSERT, [(_encode(event),) for event in events])
                writer.execute("COMMIT")
            finally:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise OutboxUnavailable(str(error)) from error

    def oldest(self, most: int) -> Sequence[tuple[int, UsageEvent]]:
        rows = self._shipper.execute(OLDEST, (most,)).fetchall()
        return [(place, _decode(event)) for place, event in rows]

    def delete(self, upto: int) -> None:
        self._shipper.execute(DELETE, (upto,))
        self._shipper.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def count(self) -> int:
        ((count,),) = self._shipper.execute(COUNT).fetchall()
        return int(count)

    def close(self) -> None:
        self._writer.close()
        self._shipper.close()
