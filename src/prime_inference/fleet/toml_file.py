"""TOML files into frozen structs; what is wrong is named by file and path."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from prime_inference.domain.suggestions import did_you_mean
from prime_inference.fleet.errors import SpecMalformed

T = TypeVar("T", bound=msgspec.Struct)


def read_toml(path: Path) -> dict[str, Any]:
    """Raises SpecMalformed."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecMalformed(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecMalformed(f"{path} is not TOML: {error}.") from error


def to_struct(values: Mapping[str, Any], kind: type[T], where: str) -> T:
    """`values` as a struct, strictly typed. Raises SpecMalformed."""
    for place, key, known in _unknown_keys(values, kind, ""):
        raise SpecMalformed(f"{where}: there is no key {place}{key}.{did_you_mean(key, known)}")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise SpecMalformed(f"{where}: {error}.") from error


def _unknown_keys(values: object, kind: Any, place: str) -> Iterator[tuple[str, str, list[str]]]:
    """Path, key and the known keys beside it, of each key that no field has."""
    if isinstance(values, list):
        for one in values:
            for inner in typing.get_args(kind):
                yield from _unknown_keys(one, inner, place)
        return
    struct = _struct_of(kind)
    if struct is None or not isinstance(values, Mapping):
        return
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    for key, value in values.items():
        if key not in fields:
            yield place, key, list(fields)
        else:
            yield from _unknown_keys(value, fields[key], f"{place}{key}.")


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for option in options:
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None
