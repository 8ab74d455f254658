"""Verdicts are those of the published benchmark, and an answer is judged by its text."""

from __future__ import annotations

from pathlib import Path

from prime_inference.bench.faults.__main__ import SCENARIOS, _play
from prime_inference.bench.faults.client import Answer
from prime_inference.bench.faults.scenario import Scenario, Scene
from prime_inference.bench.faults.scorecard import Finding, Row, Verdict, line, markdown

TEXT = "one two three"


def answered(**fields: object) -> Answer:
    return Answer(**{"status": 200, "text": TEXT, "finish": "stop", "done": True, **fields})  # type: ignore[arg-type]


def test_an_answer_is_complete_only_with_its_whole_text_and_its_end():
    assert answered().outcome(TEXT) == "complete"
    assert answered(text="one two").outcome(TEXT) == "TRUNCATED"
    assert answered(done=False).outcome(TEXT) == "TRUNCATED"
    assert answered(finish="").outcome(TEXT) == "TRUNCATED"
    assert answered(text="one two two three").outcome(TEXT) == "WRONG TEXT"


def test_an_error_is_clean_only_if_what_came_before_it_is_true():
    assert answered(text="one", error="the engine died").outcome(TEXT) == "error"
    assert answered(text="one one", error="the engine died").outcome(TEXT) == "WRONG TEXT"
    assert Answer(status=502, error="no engine").outcome(TEXT) == "error"


def test_verdicts_are_those_of_the_benchmark():
    finding = Finding(outcome="complete")
    verdicts = [finding.verdict]
    finding.check("advised", False, "no", advice=True)
    verdicts.append(finding.verdict)
    finding.rescued = False
    verdicts.append(finding.verdict)
    finding.check("required", False, "no")
    verdicts.append(finding.verdict)
    assert verdicts == [Verdict.PASS, Verdict.PARTIAL, Verdict.SAFE, Verdict.FAIL]


def test_what_failed_is_shown_with_its_reason():
    finding = Finding(outcome="TRUNCATED")
    finding.check("no_truncated_success", False, "40 of 60 words")
    row = Row("S08", "Stream cut mid-answer", "It goes on.", finding)
    assert "FAIL" in line(row)
    assert "no_truncated_success: 40 of 60 words" in line(row)
    assert "1 fail of 1" in markdown([row], "preface")


def test_a_scenario_in_two_arrangements_is_counted_once_in_each():
    good, partly = Finding(outcome="complete"), Finding(outcome="complete")
    partly.check("advised", False, "no", advice=True)
    found = {"S01": partly, "S01a": good, "S02": good, "F01": good}
    page = markdown([Row(name, name, "", finding) for name, finding in found.items()], "preface")
    assert "Ours: 1 pass of 1." in page
    assert "two deployments of the model: 1 pass, 1 partial of 2;" in page
    assert "only deployment: 2 pass of 2." in page


async def test_a_scenario_that_breaks_off_is_a_failed_one(tmp_path: Path):
    async def broken(scene: Scene) -> Finding:
        """Nothing."""
        raise RuntimeError("no engine")

    row = await _play(Scenario("F99", "Broken", broken), Scene(tmp_path))
    assert row.finding.verdict is Verdict.FAIL


def test_there_are_the_published_sixteen_and_at_least_fourteen_of_ours_each_saying_what_it_proves():
    ids = [scenario.id for scenario in SCENARIOS]
    published = [name for name in ids if name[0] == "S" and not name.endswith("a")]
    assert published == [f"S{n:02}" for n in range(1, 17)]
    assert len([name for name in ids if name[0] == "F"]) >= 14
    assert len(set(ids)) == len(ids)
    assert all(scenario.proves for scenario in SCENARIOS)
