"""A request to the admin API that was let in, and where it goes."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.moments import iso, moment

ID_BYTES = 8  # 64 bits: ids that people type, of which there are few

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was let in."""

    actor: str
    body: bytes
    query: Mapping[str, str]
    parts: Sequence[str]  # of the path

    def decode(self, kind: type[T]) -> T:
        """The body. Raises InvalidRequest."""
        try:
            return msgspec.json.decode(self.body or b"{}", type=kind)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"The body is not right: {error}.") from error


Routes = dict[tuple[str, str], Callable[[Call], object]]
"""By method and pattern of a path, whose groups become the parts of a call. What is called runs in
a worker thread and answers with JSON."""


class Operations(Protocol):
    """What the admin API does to one noun."""

    def routes(self) -> Routes: ...


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(ID_BYTES)}"


def iso_or_none(seconds: float | None) -> str | None:
    return None if seconds is None else iso(seconds)


def moment_of(text: str, param: str) -> float:
    """Seconds since the epoch. Raises InvalidRequest."""
    try:
        return moment(text)
    except ValueError as error:
        raise InvalidRequest(f"'{param}': {error}.", param=param) from None


def basis_points(percent: float, param: str) -> int:
    """Hundredths of a percent. Raises InvalidRequest for what is finer."""
    points = round(percent * 100)
    if abs(points - percent * 100) > 1e-6:  # binary fractions have no hundredths
        raise InvalidRequest(f"'{param}' has at most two decimals.", param=param)
    return points
