"""Read and write safetensors files piece by piece, whatever their size.

The `safetensors` package writes a file from tensors that are all in memory; a shard of a
large checkpoint is not. The format: 8 bytes, the header's length as little-endian u64; the
header, JSON, {name: {dtype, shape, data_offsets}} with offsets from the header's end, and
`__metadata__`, a map of strings; then the tensors' bytes without gaps.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, BinaryIO, Final

import msgspec

from prime_inference.kvcache.errors import CheckpointMalformed

CHUNK: Final = 8 * 1024 * 1024  # bytes read at a time: large enough for a disk, small in memory
# Bits of an element, for every dtype of safetensors 0.6; sub-byte elements are packed.
DTYPE_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
MAX_HEADER: Final = 100 * 1024 * 1024  # the limit of the reference implementation
METADATA: Final = "__metadata__"

Size = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """What a header says of a tensor."""

    dtype: str
    shape: tuple[Size, ...]
    data_offsets: tuple[Size, Size]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where one tensor lies, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """The header of a file: tensors in the order of their bytes, and the metadata."""

    path: Path
    data_start: int
    tensors: tuple[Tensor, ...]
    metadata: dict[str, str]

    @classmethod
    def open(cls, path: Path) -> SafetensorsFile:
        """Read and check the header. Raises `CheckpointMalformed`."""
        status = path.stat()
        if not S_ISREG(status.st_mode):  # opening a pipe would wait for a writer
            raise CheckpointMalformed(f"{path.name} is not a file")
        size = status.st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER):
                raise CheckpointMalformed(f"{path.name}: a header of {length} bytes is impossible")
            try:
                header = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
                metadata = msgspec.json.decode(header.pop(METADATA, b"{}"), type=dict[str, str])
                tensors = [_tensor(name, entry) for name, entry in header.items()]
            except (msgspec.MsgspecError, CheckpointMalformed, RecursionError) as error:
                raise CheckpointMalformed(f"{path.name}: unreadable header: {error}") from error
        tensors.sort(key=lambda one: (one.begin, one.end))
        end = 0
        for one in tensors:
            if one.begin != end or one.end < one.begin:
                raise CheckpointMalformed(f"{path.name}: {one.name} leaves a gap or overlaps")
            if one.dtype in DTYPE_BITS and one.nbytes * 8 != _bits(one):
                raise CheckpointMalformed(
                    f"{path.name}: {one.name} is {one.dtype} {list(one.shape)} in {one.nbytes} "
                    "bytes, which cannot be"
                )
            end = one.end
        if 8 + length + end != size:
            raise CheckpointMalformed(f"{path.name}: {size} bytes, its header says otherwise")
        return cls(path, 8 + length, tuple(tensors), metadata)

    def chunks(self, tensor: Tensor) -> Iterator[bytes]:
        """The bytes of a tensor, `CHUNK` at a time."""
        with self.path.open("rb") as file:
            file.seek(self.data_start + tensor.begin)
            left = tensor.nbytes
            while left:
                piece = file.read(min(CHUNK, left))
                if not piece:
                    raise CheckpointMalformed(f"{self.path.name}: ends within {tensor.name}")
                left -= len(piece)
                yield piece

    def read(self, tensor: Tensor) -> bytes:
        """All bytes of a tensor."""
        return b"".join(self.chunks(tensor))

    def write_header(self, file: BinaryIO, metadata: dict[str, str]) -> None:
        """The header of a copy with other metadata; the tensors' bytes must follow in order."""
        header: dict[str, object] = {METADATA: metadata} if metadata else {}
        for one in self.tensors:
            header[one.name] = {
                "dtype": one.dtype,
                "shape": one.shape,
                "data_offsets": (one.begin, one.end),
            }
        text = msgspec.json.encode(header)
        text += b" " * (-len(text) % 8)  # the data stays aligned to 8 bytes
        file.write(len(text).to_bytes(8, "little") + text)


def _bits(one: Tensor) -> int:
    return DTYPE_BITS[one.dtype] * math.prod(one.shape)


def _tensor(name: str, raw: msgspec.Raw) -> Tensor:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except msgspec.MsgspecError as error:
        raise CheckpointMalformed(f"{name}: {error}") from error
    return Tensor(name, entry.dtype, entry.shape, *entry.data_offsets)


def flush_to_disk(file: BinaryIO) -> None:
    """Return once the bytes are on the disk, so that a rename may follow."""
    file.flush()
    os.fsync(file.fileno())
