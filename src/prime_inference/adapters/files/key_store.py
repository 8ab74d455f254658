"""API keys of one machine's state folder.

`keys.json` holds the records, `api_key` the text of the machine's own key, both readable
by their owner only. A file is written beside its place and renamed, so that a crash
leaves the old one or the new one.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from prime_inference.domain import keys as api_keys
from prime_inference.domain.errors import CannotStart
from prime_inference.domain.keys import ApiKey

LOCAL_TENANT = "local"


class StateFolderError(CannotStart):
    """The state folder cannot be used; the message says why and what to do."""


def unusable(folder: Path, error: OSError) -> StateFolderError:
    """The error for a folder that cannot be made, read or written."""
    return StateFolderError(
        f"The state folder {folder} cannot be used: {error.strerror}."
        " Choose another with --state-dir."
    )


class FileKeyStore:
    """Implements `ports.keys.KeyStore`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[str, ApiKey] = {}

    @classmethod
    def open(cls, folder: Path, now: float) -> FileKeyStore:
        """Read the folder's keys; make the folder and its own key on first use.

        Raises StateFolderError.
        """
        store = cls(folder)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            store._load()
            if store._own_key() is None:
                store._create_own_key(now)
        except OSError as error:
            raise unusable(folder, error) from error
        return store

    def find(self, key_id: str) -> ApiKey | None:
        return self._keys.get(key_id)

    @property
    def own_key(self) -> str:
        """Text of the key made on first start."""
        text = self._own_key()
        assert text is not None
        return text

    def _load(self) -> None:
        path = self._folder / "keys.json"
        if not path.exists():
            return
        try:
            keys = msgspec.json.decode(path.read_bytes(), type=list[ApiKey])
        except msgspec.MsgspecError as error:
            raise StateFolderError(
                f"{path} is damaged ({error}). Restore it from a backup, or move it away to"
                " start with a new key."
            ) from error
        self._keys = {key.key_id: key for key in keys}

    def _own_key(self) -> str | None:
        path = self._folder / "api_key"
        if not path.exists():
            return None
        text = path.read_text().strip()
        key = self._keys.get(api_keys.parse(text) or "")
        return text if key is not None and api_keys.verify(text, key) else None

    def _create_own_key(self, now: float) -> None:
        text, key = api_keys.create(LOCAL_TENANT, name="made on first start", created_at=now)
        self._keys[key.key_id] = key
        self._write("keys.json", msgspec.json.encode(list(self._keys.values())))
        self._write("api_key", f"{text}\n".encode())

    def _write(self, name: str, data: bytes) -> None:
        draft = self._folder / f".{name}.{os.getpid()}"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._folder / name)
