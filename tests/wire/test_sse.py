"""Framing of server-sent events against the letter of the standard."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.sse import SseFramer, event_data


def by_the_letter(stream: bytes) -> list[bytes]:
    """WHATWG HTML 9.2.6, step by step, over the whole stream."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\n|\r", stream)
    events, data = [], b""
    for line in lines[:-1]:  # the last one is not terminated
        if not line:
            if data:
                events.append(data.removesuffix(b"\n"))
            data = b""
        elif not line.startswith(b":"):
            name, _, value = line.partition(b":")
            if name == b"data":
                data += value.removeprefix(b" ") + b"\n"
    return events


def frame(*chunks: bytes, max_event: int = 10_000) -> list[bytes]:
    framer = SseFramer(max_event)
    return [event for chunk in chunks for event in framer.feed(chunk)]


LINES = st.sampled_from([
    b"data: {}", b"data:x", b"data:  y", b"data", b"data:", b"data: a:b", b"dat", b"Data: no",
    b"data : no", b": comment", b":", b"event: e", b"id: 1", b"retry: 5", b" data: no", b"",
    "data: Grüße, 世界 🎉".encode(), b"data: [DONE]", b"\xef\xbb\xbfdata: bom", b"data: \xff\0",
]) | st.binary(max_size=6)  # fmt: skip
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=20).map(
    lambda lines: b"".join(part for line in lines for part in line)
)


@given(STREAMS)
def test_events_are_those_of_the_standard(stream: bytes):
    assert frame(stream) == by_the_letter(stream)


@given(STREAMS)
@example(b"data: a\r\r\ndata: b\n\r\n\n\rdata: c\r\n\r\n")
@example("\ufeffdata: 世\r\n\r\n".encode())
def test_every_single_cut_gives_the_same_events(stream: bytes):
    expected = by_the_letter(stream)
    for cut in range(len(stream) + 1):
        assert frame(stream[:cut], stream[cut:]) == expected


@given(STREAMS, st.lists(st.integers(0, 5), max_size=60))
def test_any_cuts_give_the_same_events(stream: bytes, sizes: list[int]):
    chunks = []
    rest = stream
    for size in sizes:
        chunks.append(rest[:size])
        rest = rest[size:]
    assert frame(*chunks, rest) == by_the_letter(stream)
    assert frame(*[stream[i : i + 1] for i in range(len(stream))]) == by_the_letter(stream)


def outcome(chunks: list[bytes], max_event: int) -> tuple[list[bytes], bool]:
    """The events, and whether the framer then gave up; it is asked once more at the end."""
    framer = SseFramer(max_event)
    events = []
    try:
        for chunk in [*chunks, b""]:
            events += framer.feed(chunk)
    except UpstreamMalformed:
        return events, True
    return events, False


@given(STREAMS, st.integers(0, 12), st.integers(1, 9))
def test_an_event_too_large_ends_the_stream_at_the_same_place_however_it_is_cut(
    stream: bytes, max_event: int, step: int
):
    chunks = [stream[i : i + step] for i in range(0, len(stream), step)]
    events, gave_up = outcome([stream], max_event)
    assert outcome(chunks, max_event) == (events, gave_up)
    assert events == by_the_letter(stream)[: len(events)]
    assert gave_up or events == by_the_letter(stream)


def test_an_event_at_the_limit_passes_and_a_byte_more_does_not():
    whole = b"data: " + b"x" * 94
    assert outcome([whole + b"\n\n"], 100) == ([b"x" * 94], False)
    assert outcome([whole, b"\n", b"\n"], 100) == ([b"x" * 94], False)
    assert outcome([b"\xef\xbb\xbf" + whole + b"\n\n"], 103) == ([b"x" * 94], False)
    assert outcome([b"\xef\xbb\xbf" + whole, b"\n\n"], 102) == ([], True)
    assert outcome([b"\xef\xbb\xbf" + whole + b"\n\n"], 102) == ([], True)
    assert outcome([b"data: 1\n\n" + whole + b"x\n\ndata: 2\n\n"], 100) == ([b"1"], True)
    assert outcome([b"data: 1\n\n" + whole, b"x", b"\n\n"], 100) == ([b"1"], True)


def test_what_is_too_large_is_not_kept():
    framer = SseFramer(max_event=1000)
    for _ in range(3):
        with pytest.raises(UpstreamMalformed):
            framer.feed(b"x" * 2000)
    assert not framer._parts


@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
def test_a_long_event_is_not_copied_until_it_is_complete(ending: bytes):
    """What makes the time linear: a chunk is kept as it is, and joined with the others once."""
    framer = SseFramer()
    chunks = [b"data: 0123456789" + bytes([65 + i % 26]) * 100 for i in range(1000)]
    for count, chunk in enumerate(chunks, 1):
        assert framer.feed(chunk) == []
        assert len(framer._parts) == count
        assert framer._parts[-1] is chunk
    (event,) = framer.feed(ending * 2 + b"rest")
    assert len(event) == 1000 * 116 - 6
    assert framer._parts == [b"rest"]


def test_an_unterminated_tail_is_left_over():
    framer = SseFramer()
    assert framer.feed(b"data: 1\n\ndata: 2\r") == [b"1"]
    assert framer.end() == b"data: 2"
    assert framer.end() == b""
    for tail in (b"", b"\n", b"\r\n", b"\xef\xbb\xbf"):
        framer = SseFramer()
        framer.feed(tail)
        assert framer.end() == b""


@pytest.mark.parametrize(
    ("block", "data"),
    [
        (b"data: x", b"x"),
        (b"data:x", b"x"),
        (b"data", b""),
        (b"data: a\ndata: b\n: c\nevent: d", b"a\nb"),
        (b"event: ping", None),
        (b": comment", None),
        (b"", None),
    ],
)
def test_the_data_of_an_event_is_all_its_data_fields(block: bytes, data: bytes | None):
    assert event_data(block) == data
