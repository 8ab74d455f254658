"""What holds for every test, however the suite was started."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let Ctrl-C reach the child processes of tests.

    Under nohup, or in the background of a script, SIGINT is ignored, and a program that was
    started so starts others so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
