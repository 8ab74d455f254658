"""What holds for every test, however the suite was started; what all of them share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.gateway.processes import Processes
    from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    # The environments of test-kv and test-grammar have no driver for Postgres.
    from tests.postgres_server import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def shared_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A gateway and an engine as child processes, shared by tests that only ask."""
    from tests.gateway.processes import child_processes

    with child_processes(tmp_path_factory.mktemp("processes")) as processes:
        yield processes


@pytest.fixture
def processes(shared_processes: Processes) -> Iterator[Processes]:
    """The shared processes, with an engine that behaves and remembers nothing."""
    shared_processes.reset()
    yield shared_processes
    shared_processes.reset()


def pytest_configure() -> None:
    """Let Ctrl-C reach the child processes of tests.

    Under nohup, or in the background of a script, SIGINT is ignored, and a program that was
    started so starts others so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
