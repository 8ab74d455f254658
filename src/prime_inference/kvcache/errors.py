"""What can be wrong with rows, layouts and checkpoints, as one tree.

KvCacheError
├── ShapeMismatch        an array has not the shape the format asks for
├── DtypeMismatch        an array has a type whose conversion would round twice
├── LayoutMismatch       blocks, strides or layouts that cannot be what is claimed
├── ScaleInexact         a power-of-two scale would leave the number format's range
├── CheckpointMalformed  a safetensors file that is not what its header says, lacks a
│                        tensor that folding needs, or is folded already
└── CalibrationMalformed a file of latents that cannot be read, or latents that bound nothing
"""

from __future__ import annotations


class KvCacheError(Exception):
    """Any error of this package; the classes below say which."""


class ShapeMismatch(KvCacheError, ValueError):
    """`name` has shape `actual`; `expected` is the shape in words, as `[T, 512]`."""

    def __init__(self, name: str, expected: str, actual: tuple[int, ...]) -> None:
        super().__init__(f"{name} must have shape {expected}, not {list(actual)}")
        self.name = name
        self.expected = expected
        self.actual = actual


class DtypeMismatch(KvCacheError, TypeError):
    """`name` has dtype `actual`, which is none of `expected`."""

    def __init__(self, name: str, expected: str, actual: object) -> None:
        super().__init__(f"{name} must have dtype {expected}, not {actual}")
        self.name = name
        self.expected = expected
        self.actual = str(actual)


class LayoutMismatch(KvCacheError, ValueError):
    """Blocks, strides or layouts contradict each other."""


class ScaleInexact(KvCacheError, ArithmeticError):
    """Multiplying `name` by 2**`exponent` would not be exact in its own number format."""

    def __init__(self, name: str, exponent: int, elements: int) -> None:
        super().__init__(
            f"{elements} elements of {name} are not exact after multiplication by 2**{exponent}"
        )
        self.name = name
        self.exponent = exponent
        self.elements = elements


class CheckpointMalformed(KvCacheError, ValueError):
    """A checkpoint that cannot be folded; the message names file and tensor."""


class CalibrationMalformed(KvCacheError, ValueError):
    """Calibration latents from which no scale follows; the message names file and layer."""
