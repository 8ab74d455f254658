"""~/.prime/config.json, shared with the other `prime` tools of this person.

Keys that are not known here belong to one of those tools and are kept as they are. The file
is replaced whole, so that a reader never sees half of one, and only its owner can read it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_inference.cli.failures import ConfigInvalid

PRODUCTION = "production"
"""The built-in environment: the one in use where the file names none."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The config file's content; `values` has every key found there."""

    path: Path
    values: Mapping[str, Any]

    def text(self, key: str) -> str | None:
        """A key's value without surrounding blanks; None if it is absent, null or empty.

        Raises ConfigInvalid when it is not text.
        """
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigInvalid(f"{key} in {self.path} must be text, not {json.dumps(value)}.")
        return (value or "").strip() or None

    @property
    def environment(self) -> str:
        """The named environment in use."""
        return self.text("current_environment") or PRODUCTION

    def with_values(self, **changes: object) -> ConfigFile:
        """The same file with some keys set anew; `save` writes it."""
        return ConfigFile(self.path, {**self.values, **changes})

    def save(self) -> None:
        """Write the file. Raises ConfigInvalid when that cannot be done."""
        write_json(self.path, self.values)


def config_path(home: Path) -> Path:
    """Where the config file of a home folder is."""
    return home / ".prime" / "config.json"


def load_config(path: Path) -> ConfigFile:
    """The config file at `path`; an empty one if there is none. Raises ConfigInvalid."""
    return ConfigFile(path, read_json(path) if path.exists() else {})


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ConfigInvalid."""
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigInvalid(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(
            f"{path} is not valid JSON: {error}.", hint="Mend it by hand, or move it away."
        ) from error
    if not isinstance(values, dict):
        raise ConfigInvalid(f"{path} must hold a JSON object.")
    return values


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a file, or what it links to, in one step. Raises ConfigInvalid."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = path.resolve()
        handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise ConfigInvalid(f"Cannot write {path}: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:  # mkstemp gives it mode 0600
            json.dump(values, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(target)
    except OSError as error:
        Path(draft).unlink(missing_ok=True)
        raise ConfigInvalid(f"Cannot write {path}: {error.strerror}.") from error
