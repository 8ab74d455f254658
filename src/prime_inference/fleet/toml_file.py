"""Files of fleets and specs; what is wrong is named by file and place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prime_inference.domain import toml
from prime_inference.domain.toml import TomlRefused
from prime_inference.fleet.errors import SpecMalformed

T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path) -> dict[str, Any]:
    """Raises SpecMalformed."""
    try:
        return toml.read_toml(path)
    except TomlRefused as error:
        raise SpecMalformed(f"{path}: {error.sentence}") from error


def to_struct(values: Mapping[str, Any], kind: type[T], where: str) -> T:
    """`values` as a struct, strictly typed. Raises SpecMalformed."""
    try:
        return toml.to_struct(values, kind)
    except TomlRefused as error:
        raise SpecMalformed(f"{where}: {error.sentence}") from error
