"""A benchmark that is told to end tidies up: what it started ends, what it found stays."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; the exit code is 143.

    It becomes SIGINT, the one signal for which asyncio cancels what runs.
    """
    told = False

    def tell(*_: object) -> None:
        nonlocal told
        told = True
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGTERM, tell)
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.SIG_IGN:  # so a script's shell starts what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        if told:
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, interrupt)
