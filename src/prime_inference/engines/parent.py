"""What a child process owes its parent: no parent, no engine."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(parent: int) -> None:
    """In a child: ask the kernel for SIGKILL when the parent dies, and look whether it has.

    To the kernel the parent is the thread that started us: that of the event loop.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
