"""A command on a terminal of its own, typed at and read like a person would."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator

# makes the pseudo-terminal the controlling one, so that Ctrl-C in it becomes SIGINT
TAKE_TERMINAL = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
TAKE_TERMINAL += "os.execv(sys.argv[1], sys.argv[1:])"
CTRL_C = "\x03"
CTRL_D = "\x04"


class TerminalSession:
    """What a person sees and types."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self._terminal = terminal
        self._read = 0
        self.process = process
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def expect(self, text: str, seconds: float = 20.0) -> None:
        """Wait until `text` appears after what was last waited for."""
        assert self._appears(text, seconds), f"{text!r} did not appear in {self.screen!r}"

    def press_until(self, key: str, text: str, times: int = 20) -> None:
        """Press a key until `text` appears.

        Python's line editor notices Ctrl-C only while it waits for a key, not in the moment
        in which it handles the one before.
        """
        for _ in range(times):
            self.type(key)
            if self._appears(text, 1.0):
                return
        raise AssertionError(f"{text!r} did not appear in {self.screen!r}")

    def _appears(self, text: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while text not in self.screen[self._read :]:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._terminal], [], [], left)[0]:
                return False
            self.screen += self._output()
        self._read = self.screen.index(text, self._read) + len(text)
        return True

    def end(self, seconds: float = 20.0) -> int:
        """Wait for the command to end; its exit code."""
        with contextlib.suppress(OSError):  # the terminal hangs up with its last process
            while select.select([self._terminal], [], [], seconds)[0]:
                self.screen += self._output()
        return self.process.wait(seconds)

    def _output(self) -> str:
        return os.read(self._terminal, 65536).decode("utf-8", "replace").replace("\r\n", "\n")


@contextlib.contextmanager
def on_terminal(command: list[str], environment: dict[str, str]) -> Iterator[TerminalSession]:
    """Start a command on a new pseudo-terminal."""
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"TERM": "xterm", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield TerminalSession(terminal, process)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
