"""Whether JSON text that comes in pieces is whole."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.wire.openai.json_end import JsonEnd

VALUES = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('{}[]"\\aé\n'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
PIECES = st.lists(st.sampled_from(["{", "}", "[", "]", '"', "\\", '"a"', ":", "1", " ", ","]))


def is_document(text: str) -> bool:
    """Whether it is an object or an array, as the standard library sees it."""
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


@settings(deadline=None)  # for busy machines
@given(VALUES, st.data())
def test_a_document_is_whole_from_its_last_bracket_on(value, data):
    text = json.dumps({"v": value}, ensure_ascii=False) + " \n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    end, given_pieces, read = JsonEnd(), list[str](), ""
    for piece in pieces:
        given_pieces.append(piece)
        read += piece
        assert end.is_whole(given_pieces) is is_document(read)
    assert end.is_whole(given_pieces)


@settings(deadline=None)  # for busy machines
@given(PIECES, st.integers(1, 4))
def test_what_is_no_document_is_never_whole_and_one_that_went_on_is_none(pieces, every):
    end, given_pieces = JsonEnd(), list[str]()
    for number, piece in enumerate(pieces):
        given_pieces.append(piece)
        if number % every == 0:  # asked now and then: it looks at what came since
            assert not end.is_whole(given_pieces) or is_document("".join(given_pieces))
