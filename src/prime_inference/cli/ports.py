"""Ports to listen on, and what to say when one cannot be had."""

from __future__ import annotations

import errno
import socket

from prime_inference.cli.failures import PortUnavailable

HIGHEST_PORT = 65535


def require_port(option: str, host: str, port: int) -> None:
    """Raises PortUnavailable when nothing can listen there; `option` is where `port` is set.

    It is tried so that a person hears of it before weights are fetched and a model is loaded.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise unavailable(option, host, port, error) from error


def unavailable(option: str, host: str, port: int, error: OSError) -> PortUnavailable:
    """The failure for an error of listening."""
    if error.errno == errno.EADDRINUSE:
        return PortUnavailable(
            f"Port {port} of {host} is in use by another program, perhaps another server.",
            hint=f"Choose another with {option}; {option} 0 takes any free one.",
        )
    if error.errno == errno.EACCES:
        return PortUnavailable(
            f"Port {port} of {host} is not for ordinary users.",
            hint=f"Choose one above 1023 with {option}.",
        )
    return PortUnavailable(f"Cannot listen on {host}, port {port}: {error.strerror or error}.")
