"""TOML files into frozen structs: whatever is in them is taken, or refused with its place."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from prime_inference.domain.suggestions import did_you_mean

T = TypeVar("T", bound=msgspec.Struct)

KEY_CHARACTERS = 80  # of a key that is not known: enough to find it


class TomlRefused(Exception):
    """The message says what is wrong, and where in the file if it is in its values."""

    @property
    def sentence(self) -> str:
        """The message with a stop at its end."""
        said = str(self)
        return said if said.endswith((".", "?")) else f"{said}."


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises TomlRefused, and nothing else for any content."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except OSError as error:
        raise TomlRefused(f"it cannot be read: {error.strerror}") from error
    except ValueError as error:  # of the syntax, of the encoding, of a number with 5,000 digits
        raise TomlRefused(f"it is not TOML: {error}") from error
    except RecursionError as error:
        raise TomlRefused("it is not TOML: arrays or tables are nested too deep") from error


def to_struct(values: Mapping[str, Any], kind: type[T]) -> T:
    """`values` as a struct, strictly typed. Raises TomlRefused, and nothing else."""
    try:
        for unknown in unknown_keys(values, inspect.type_info(kind)):
            raise TomlRefused(str(unknown))
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise TomlRefused(str(error).replace("$.", "")) from error
    except (RecursionError, OverflowError) as error:  # values of JSON may be that deep, or large
        raise TomlRefused(f"a value is out of all bounds: {error}") from error


class UnknownKey(NamedTuple):
    """A key that no field has."""

    place: str  # of its table: deployments[0].mock
    key: str
    known: list[str]  # the keys that there are beside it

    def __str__(self) -> str:
        key = self.key[:KEY_CHARACTERS]
        place = self.place or "the top"
        return f"{place}: there is no key {key}.{did_you_mean(key, self.known)}"


def unknown_keys(value: object, kind: inspect.Type, place: str = "") -> Iterator[UnknownKey]:
    """Every key that no field of a struct has, wherever in `value` it is."""
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        for number, one in enumerate(value):
            yield from unknown_keys(one, kind.item_type, f"{place}[{number}]")
    elif isinstance(kind, inspect.UnionType) and isinstance(value, Mapping):
        for option in kind.types:  # at most one is a struct: a table is of no other kind
            yield from unknown_keys(value, option, place)
    elif isinstance(kind, inspect.StructType) and isinstance(value, Mapping):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, inner in value.items():
            if key in fields:
                yield from unknown_keys(inner, fields[key], f"{place}.{key}".lstrip("."))
            else:
                yield UnknownKey(place, key, list(fields))
