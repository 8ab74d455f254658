"""Header fields as they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.wire.http import Request, header_lines

FIELDS = st.lists(st.tuples(st.binary(max_size=5), st.binary(max_size=5)), max_size=4)


@given(FIELDS)
def test_every_field_is_one_line_or_none_is_written(fields: list[tuple[bytes, bytes]]):
    evil = any(byte in b"\r\n\0" for pair in fields for part in pair for byte in part)
    if evil:
        with pytest.raises(ValueError, match="CR, LF or NUL"):
            header_lines(fields)
    else:
        assert header_lines(fields).split(b"\r\n")[:-1] == [b"%b: %b" % pair for pair in fields]


def test_a_request_gives_the_first_field_of_a_name():
    request = Request("GET", "/", "", [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], b"", "")
    assert request.header(b"a") == b"1"
    assert request.header(b"c") is None
