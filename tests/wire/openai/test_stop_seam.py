"""Stop strings over seams: whatever the cuts, the client reads the text up to the stop string."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from prime_inference.wire.openai.stop_seam import StopSeam

TEXT = st.text("ab ", max_size=12)
STOP = st.text("ab ", min_size=1, max_size=5)


def up_to_stop(text: str, stops: list[str]) -> str | None:
    """The text before the earliest stop string; None if it has none."""
    found = [text.index(stop) for stop in stops if stop in text]
    return text[: min(found)] if found else None


@given(TEXT, st.lists(STOP, min_size=1, max_size=3), TEXT, st.sets(st.integers(1, 11)))
@example("ab", ["bab"], "ab a", {1})
@example("a", ["ab a"], "b b", set())
def test_a_stop_string_that_straddles_the_seam_ends_the_answer(
    sent: str, stops: list[str], more: str, cuts: set[int]
):
    if any(stop in sent for stop in stops):
        return  # the first engine would have stopped there
    own = up_to_stop(more, stops)
    more = more if own is None else own  # where the second one stops by itself
    seam = StopSeam(stops, sent)
    places = [0, *sorted(cut for cut in cuts if cut < len(more)), len(more)]
    read = sent
    for begin, end in pairwise(places):
        read += seam.feed(more[begin:end])
        if seam.stopped or not seam.watching:
            break
    expected = up_to_stop(sent + more, stops)
    if seam.stopped:
        assert expected is not None
        assert read == max(expected, sent, key=len)  # what was sent cannot be taken back
        return
    assert expected is None
    assert read + seam.rest() + more[end:] == sent + more


@given(TEXT, STOP, st.lists(TEXT, min_size=1, max_size=4))
def test_text_that_is_held_back_outlives_further_seams(sent: str, stop: str, pieces: list[str]):
    if stop in sent:
        return
    seam = StopSeam([stop], sent)
    read, said = sent, sent
    for piece in pieces:
        said += piece
        read += seam.feed(piece)
        assert said.startswith(read)
        if seam.stopped:
            assert stop in said
            return
        seam.again()
    assert read + seam.rest() == said


def test_nothing_is_held_back_longer_than_a_stop_string_can_be():
    seam = StopSeam(["never"], "ever so")
    assert seam.feed(" long") == " long"
    assert not seam.watching
    seam = StopSeam(["never"], "ne")
    assert seam.feed("ve") == ""
    assert seam.watching
    assert seam.feed("lope") == "velope"
    assert not seam.watching
