"""Progress of a download, on a pipe and on a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.cli.progress import DownloadProgress, Milestones, amount


def lines_for(reports: list[tuple[int, float]], total: int | None) -> list[int]:
    """Bytes at which a line is due; `reports` are (bytes done, seconds)."""
    milestones = Milestones()
    return [done for done, now in reports if milestones.due(done, total, now)]


def test_a_fast_download_has_a_line_every_tenth():
    assert lines_for([(done, 0.0) for done in range(101)], 100) == list(range(0, 101, 10))


def test_a_slow_download_has_a_line_every_five_seconds():
    assert lines_for([(0, float(second)) for second in range(12)], 100) == [0, 0, 0]


def test_a_download_of_unknown_size_has_a_line_every_five_seconds():
    assert lines_for([(second * 10, float(second)) for second in range(12)], None) == [0, 50, 100]


@given(st.lists(st.integers(0, 1000)), st.integers(1, 1000))
def test_however_it_is_reported_there_are_few_lines_and_the_end_is_among_them(
    steps: list[int], total: int
):
    reports = [(min(step, total), 0.0) for step in sorted(steps)] + [(total, 0.0), (total, 0.0)]
    lines = lines_for(reports, total)
    assert len(lines) <= 12
    assert lines.count(total) == 1


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]):
    with DownloadProgress("weights") as progress:
        progress(0, 144_800_000)
        progress(43_100_000, 144_800_000)
        progress(144_800_000, 144_800_000)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "weights: 0.0 of 144.8 MB (0 %)",
        "weights: 43.1 of 144.8 MB (29 %)",
        "weights: 144.8 of 144.8 MB (100 %)",
    ]


def test_nothing_is_shown_for_a_download_that_was_not_needed(capsys: pytest.CaptureFixture[str]):
    with DownloadProgress("weights"):
        pass
    assert capsys.readouterr().err == ""


def test_an_amount_of_unknown_total_has_no_share():
    assert amount(2_500_000, None) == "2.5 MB"
