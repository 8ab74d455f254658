"""JSON body to typed request, or an error that names the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from prime_inference.domain.errors import ApiError, InvalidRequest, UnknownParameter
from prime_inference.domain.suggestions import did_you_mean

T = TypeVar("T")

MAX_QUOTED_CHARACTERS = 200  # of what the client sent: its own text is no news to it

GZIP, ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # how they begin: RFC 1952, RFC 8878

_LONE_SURROGATE = re.compile(
    rb"(?<!\\)(?:\\\\)*(?P<lone>"
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""JSON may escape half of a surrogate pair (RFC 8259, section 8.2); UTF-8 cannot carry it."""

_UNKNOWN = re.compile(
    r"Object contains unknown field `(?P<field>.*?)`(?: - at `(?P<path>.*)`)?", re.S
)
_AT = re.compile(r"(?P<what>.*) - at `(?P<path>[^`]*)`", re.S)
_MISSING = re.compile(r"Object missing required field `(?P<field>\w+)`")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode `body`. Raises InvalidRequest, UnknownParameter."""
    if not body:
        raise InvalidRequest("The request has no body; a JSON object is expected.")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _explain(str(error), decoder.type) from None
    except RecursionError:
        raise InvalidRequest("The request body is nested too deeply.") from None
    except ValueError as error:  # malformed JSON, invalid UTF-8
        raise InvalidRequest(f"The request body is {_malformed(body, str(error))}.") from None


def _malformed(body: bytes, error: str) -> str:
    """What is wrong with text that is no JSON, where the decoder's words would mislead."""
    if body.startswith((GZIP, ZSTANDARD)):
        return "compressed, which is not supported: send it as it is"
    if lone := _LONE_SURROGATE.search(body):
        escape, place = lone["lone"].decode(), lone.start("lone")
        return f"not valid JSON: {escape} at byte {place} is half a character"
    return f"not valid JSON: {error}"


def decode_at(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw, path: str) -> T:
    """Decode a part of a body that stands at `path`. Raises as `decode` does."""
    try:
        return decode(decoder, bytes(raw))
    except InvalidRequest as error:
        raise relocated(error, _join(path, error.param or "")) from None


def relocated(error: ApiError, param: str) -> ApiError:
    """The same error about a field of another name. Only for errors made of their message."""
    if error.param:
        message = error.message.replace(f"'{error.param}'", f"'{param}'")
    else:
        message = f"'{param}': {error.message}"
    return type(error)(
        message,
        param=param,
        retry_after=error.retry_after,
        details=error.details,
        headers=error.headers,
    )


def _explain(text: str, target: object) -> InvalidRequest:
    if unknown := _UNKNOWN.fullmatch(text):
        return _unknown_field(unknown["field"], unknown["path"] or "$", target)
    located = _AT.fullmatch(text)
    what, path = (located["what"], located["path"]) if located else (text, "$")
    what = _shorten(what)
    if missing := _MISSING.fullmatch(what):
        param = _join(path, missing["field"])
        return InvalidRequest(f"Missing required parameter: '{param}'.", param=param)
    param = _join(path)
    if not param:
        return InvalidRequest(f"The request body is wrong: {what}.")
    return InvalidRequest(f"Invalid value for '{param}': {what}.", param=param)


def _unknown_field(name: str, path: str, target: object) -> UnknownParameter:
    param = _shorten(_join(path, name))
    known: tuple[str, ...] = ()
    if path == "$" and isinstance(target, type) and issubclass(target, msgspec.Struct):
        known = target.__struct_encode_fields__
    return UnknownParameter(
        f"Unknown parameter: '{param}'.{did_you_mean(name, known)}", param=param
    )


def _shorten(text: str) -> str:
    limit = MAX_QUOTED_CHARACTERS
    return text if len(text) <= limit else f"{text[:limit]}..."


def _join(path: str, name: str = "") -> str:
    """`$.messages[0]` and `role` to `messages[0].role`."""
    base = path.removeprefix("$").removeprefix(".")
    return f"{base}.{name}" if base and name else base or name
