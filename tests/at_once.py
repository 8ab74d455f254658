"""Calls in threads of their own, as of several processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable


def at_once(calls: Iterable[Callable[[], object]]) -> None:
    """Return when all have."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
