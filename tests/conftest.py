"""What holds for every test, however the suite was started; one Postgres for all of them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # The environments of test-kv and test-grammar have no driver for Postgres.
    from tests.postgres_server import running_postgres

    with running_postgres() as server:
        yield server


def pytest_configure() -> None:
    """Let Ctrl-C reach the child processes of tests.

    Under nohup, or in the background of a script, SIGINT is ignored, and a program that was
    started so starts others so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
