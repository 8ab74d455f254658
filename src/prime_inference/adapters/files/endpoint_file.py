"""`endpoint.json` in the state folder: where the server of this machine listens now."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class EndpointFile:
    """Written when the server is ready, removed when it stops, only by its writer."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "endpoint.json"
        self._written = False

    def write(self, base_url: str, control_url: str, model: str) -> None:
        document = {
            "base_url": base_url,
            "control_url": control_url,
            "model": model,
            "pid": os.getpid(),
        }
        draft = self._path.with_name(f".endpoint.json.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(document))
        draft.replace(self._path)
        self._written = True

    def remove(self) -> None:
        if not self._written or not self._path.exists():
            return
        if msgspec.json.decode(self._path.read_bytes()).get("pid") == os.getpid():
            self._path.unlink()
