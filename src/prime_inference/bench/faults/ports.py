"""Ports for processes that are restarted: they have to be free the second time too."""

from __future__ import annotations

import secrets
import socket

RANGE = range(12_000, 32_000)  # below those that the kernel gives to outgoing connections


def kept_port() -> int:
    """A port of the loopback interface that nobody listens on, nor will by chance."""
    while True:
        port = secrets.choice(RANGE)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
