"""The head of a GGUF file: what a model says about itself.

Source of the format: the GGUF specification of ggml, version 2 and 3. Reads the metadata
only, and only what is asked for; tensors are left to the engine.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from prime_inference.domain.errors import CannotStart

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # struct formats by type
MAX_FIELDS = 10_000  # a file with more metadata fields is damaged
MAX_STRING_BYTES = 64 * 1024 * 1024
MAX_SKIP_BYTES = 2**40  # no file system takes a place beyond 2**63, and no file is that large


class NotGguf(CannotStart):
    """The file is no GGUF file, or a damaged one; the message says which."""


@dataclass(frozen=True, slots=True)
class GgufHead:
    """What is known of a model before it is loaded."""

    architecture: str
    name: str
    context_tokens: int  # what it was trained with; 0 where the file does not say
    has_chat_template: bool
    kv_bytes_per_token: int = 0  # of 16-bit keys and values; 0 where the file does not say
    metadata_bytes: int = 0  # where they end in the file, tokenizer and template among them


def read_head(path: Path) -> GgufHead:
    """Raises NotGguf, also for a file that cannot be read."""
    try:
        return _read_head(path)
    except OSError as error:
        raise NotGguf(f"{path} cannot be read: {error.strerror}.") from error


def _read_head(path: Path) -> GgufHead:
    with path.open("rb") as file:
        try:
            fields = _fields(file, path, _value)
            end = file.tell()
            if end > path.stat().st_size:
                raise struct.error("the last field goes on behind the end")
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise NotGguf(f"{path} is cut short or damaged.") from error
    architecture = str(fields.get("general.architecture", ""))

    def number(name: str) -> int:
        value = fields.get(f"{architecture}.{name}")
        return value if isinstance(value, int) and value > 0 else 0

    return GgufHead(
        architecture=architecture,
        name=str(fields.get("general.name", "")),
        context_tokens=number("context_length"),
        has_chat_template="tokenizer.chat_template" in fields,
        kv_bytes_per_token=_kv_bytes(number),
        metadata_bytes=end,
    )


def read_metadata(path: Path) -> dict[str, Any]:
    """All of the metadata, lists included. Raises NotGguf, OSError."""
    with path.open("rb") as file:
        try:
            return _fields(file, path, _whole_value)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise NotGguf(f"{path} is cut short or damaged.") from error


def _kv_bytes(number: Callable[[str], int]) -> int:
    """Keys and values of one token in all layers, at most: sliding windows need less."""
    heads = number("attention.head_count")
    width = number("embedding_length") // heads if heads else 0
    keys = number("attention.key_length") or width
    values = number("attention.value_length") or width
    # where it differs from layer to layer it is a list, which is not read
    kv_heads = number("attention.head_count_kv") or heads
    return 2 * number("block_count") * kv_heads * (keys + values)


def _fields(
    file: BinaryIO, path: Path, value: Callable[[BinaryIO, int], object]
) -> dict[str, object]:
    if file.read(4) != MAGIC:
        raise NotGguf(f"{path} is not a GGUF file.")
    version, _, count = struct.unpack("<IQQ", _read(file, 20))
    if version not in VERSIONS or count > MAX_FIELDS:
        raise NotGguf(f"{path} is a GGUF file of a version that is not read here ({version}).")
    fields = {}
    for _ in range(count):
        name = _string(file)
        (kind,) = struct.unpack("<I", _read(file, 4))
        fields[name] = value(file, kind)
    return fields


def _value(file: BinaryIO, kind: int) -> object:
    """A scalar or string; an array is passed over and stands as None."""
    if kind == STRING:
        return _string(file)
    if kind != ARRAY:
        layout = f"<{SCALARS[kind]}"
        return struct.unpack(layout, _read(file, struct.calcsize(layout)))[0]
    item, length = struct.unpack("<IQ", _read(file, 12))
    if item == STRING:
        for _ in range(length):
            _skip(file, _length(file))
    else:
        _skip(file, length * struct.calcsize(f"<{SCALARS[item]}"))
    return None


def _whole_value(file: BinaryIO, kind: int) -> object:
    """A scalar, a string, or a list of them."""
    if kind != ARRAY:
        return _value(file, kind)
    item, length = struct.unpack("<IQ", _read(file, 12))
    if item == STRING:
        return [_string(file) for _ in range(length)]
    layout = f"<{length}{SCALARS[item]}"
    return list(struct.unpack(layout, _read(file, struct.calcsize(layout))))


def _string(file: BinaryIO) -> str:
    return _read(file, _length(file)).decode()


def _length(file: BinaryIO) -> int:
    (length,) = struct.unpack("<Q", _read(file, 8))
    if length > MAX_STRING_BYTES:
        raise struct.error("a string longer than any real one")
    return int(length)


def _skip(file: BinaryIO, size: int) -> None:
    if size > MAX_SKIP_BYTES:
        raise struct.error("an array larger than any real one")
    file.seek(size, 1)


def _read(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise struct.error("the file ends early")
    return data
