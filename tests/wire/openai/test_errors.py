"""The error object, for every error there is."""

from __future__ import annotations

import json
import re

import pytest

from prime_inference.domain import errors
from prime_inference.domain.errors import (
    ApiError,
    MethodNotAllowed,
    ReservationExhausted,
    ShuttingDown,
    UpstreamTimeout,
)
from prime_inference.wire.openai.errors import render_error


def tree(kind: type[ApiError]) -> list[type[ApiError]]:
    """An error and all that derive from it."""
    return [kind, *(each for child in kind.__subclasses__() for each in tree(child))]


def make(kind: type[ApiError]) -> ApiError:
    if issubclass(kind, UpstreamTimeout):
        return kind("It took too long.", clock="idle")
    if issubclass(kind, MethodNotAllowed):
        return kind("No.", allowed=["GET", "HEAD"])
    if issubclass(kind, ReservationExhausted):
        return kind("No.", reservations=["res_1"], over="slots", retry_after=1.0, details={})
    if issubclass(kind, ShuttingDown):
        return kind()
    return kind("It went wrong.", param="a.b")


@pytest.mark.parametrize("kind", tree(ApiError), ids=lambda kind: kind.__name__)
def test_every_error_has_the_shape_of_openais_with_strings_for_code_and_type(
    kind: type[ApiError],
):
    status, headers, body = render_error(make(kind))
    error = json.loads(body)["error"]
    assert 400 <= status < 600
    assert dict(headers)[b"content-type"] == b"application/json"
    assert set(error) == {"message", "type", "param", "code", "metadata"}
    assert all(isinstance(error[name], str) for name in ("message", "type", "code"))
    assert re.fullmatch(r"[a-z_]+", error["code"])
    assert error["metadata"]["error_type"] == kind.error_type


def test_the_tree_in_the_documentation_is_the_tree_there_is():
    rows = re.findall(r"[├└]── (\w+) +(\d{3}) +(\w+)", errors.__doc__ or "")
    drawn = {name: (int(status), kind) for name, status, kind in rows}
    there = {kind.__name__: (kind.status, kind.error_type) for kind in tree(ApiError)}
    assert drawn == {name: there[name] for name in drawn}
    assert set(there) - set(drawn) <= {"ApiError", "UpstreamRefused"}  # statuses of others


@pytest.mark.parametrize(("seconds", "header"), [(0, b"0"), (0.01, b"1"), (2, b"2"), (2.5, b"3")])
def test_retry_after_is_whole_seconds_rounded_up(seconds: float, header: bytes):
    _, headers, _ = render_error(errors.CapacityExhausted("Full.", retry_after=seconds))
    assert dict(headers)[b"retry-after"] == header


def test_no_retry_after_comes_where_there_is_none_to_tell():
    _, headers, _ = render_error(errors.CapacityExhausted("Full."))
    assert b"retry-after" not in dict(headers)


def test_a_wrong_method_is_told_the_right_ones():
    _, headers, _ = render_error(make(MethodNotAllowed))
    assert dict(headers)[b"allow"] == b"GET, HEAD"


def test_details_go_into_the_metadata():
    _, _, body = render_error(UpstreamTimeout("Late.", clock="idle"))
    assert json.loads(body)["error"]["metadata"] == {"error_type": "timeout", "clock": "idle"}
