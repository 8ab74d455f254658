"""The server that `prime inference serve` runs on this machine, as its state folder tells."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

ENDPOINT_FILE = "endpoint.json"
KEY_FILE = "api_key"


class LocalServer(msgspec.Struct, frozen=True):
    """Where a server on this machine answers, and the key that it made for its owner."""

    base_url: str
    model: str
    api_key: str
    control_url: str = ""  # of its listener for operators


class _Endpoint(msgspec.Struct):
    """What the server writes to `endpoint.json` once it is ready."""

    base_url: str
    pid: int
    model: str = ""
    control_url: str = ""


def find_local_server(state_folder: Path) -> LocalServer | None:
    """The running server of that state folder; None if there is none.

    A server that died without tidying up does not count: by now another program may
    listen on its port, and must not be given the key.
    """
    try:
        content = (state_folder / ENDPOINT_FILE).read_bytes()
        endpoint = msgspec.json.decode(content, type=_Endpoint)
        key = (state_folder / KEY_FILE).read_text().strip()
    except (OSError, ValueError):  # absent, another person's, or being written
        return None
    if not _runs(endpoint.pid):
        return None
    return LocalServer(endpoint.base_url, endpoint.model, key, endpoint.control_url)


def _runs(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError:  # no such process, or another person's
        return False
    return True
