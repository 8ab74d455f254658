"""What a scenario found, and the verdict on it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class Verdict(enum.StrEnum):
    """Failover Bench's verdicts."""

    PASS = "pass"  # noqa: S105  # the caller got the whole answer, everything is clean
    PARTIAL = "partial"  # rescued, but advice was not followed
    SAFE = "safe"  # not rescued: a clean error within bounds
    FAIL = "fail"  # a hang, a cut answer that looks whole, or a required check failed
    SKIPPED = "skipped"  # this machine cannot play it


ALONE = "a"  # ends the id of a published scenario without a second deployment


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that had to hold. Advice that is not followed makes a pass a partial."""

    name: str
    held: bool
    found: str
    advice: bool = False


@dataclass
class Finding:
    """What one scenario saw."""

    outcome: str = ""  # in a word: complete, error, TRUNCATED, 40/40 complete
    attempts: str = ""  # requests the engines saw: "2p/1f" of the primary and the fallback
    seconds: float = 0.0  # of the call, or of the scenario's slowest
    rescued: bool = True  # the client got what it should
    checks: list[Check] = field(default_factory=list)
    skipped: str = ""  # why it could not be played

    def check(self, name: str, held: bool, found: object, *, advice: bool = False) -> None:
        """Note a check."""
        self.checks.append(Check(name, bool(held), str(found), advice))

    @property
    def verdict(self) -> Verdict:
        if self.skipped:
            return Verdict.SKIPPED
        if any(not check.held and not check.advice for check in self.checks):
            return Verdict.FAIL
        if not self.rescued:
            return Verdict.SAFE
        followed = all(check.held for check in self.checks)
        return Verdict.PASS if followed else Verdict.PARTIAL


@dataclass(frozen=True)
class Row:
    """A scenario's line in the scorecard."""

    id: str
    title: str
    proves: str
    finding: Finding

    def as_object(self) -> dict[str, object]:
        """For the JSON file."""
        finding = self.finding
        return {
            "id": self.id,
            "title": self.title,
            "proves": self.proves,
            "verdict": finding.verdict,
            "outcome": finding.outcome,
            "attempts": finding.attempts,
            "seconds": round(finding.seconds, 2),
            "skipped": finding.skipped,
            "checks": [
                {"name": c.name, "held": c.held, "found": c.found, "advice": c.advice}
                for c in finding.checks
            ],
        }


def line(row: Row) -> str:
    """A row for the terminal."""
    finding = row.finding
    return (
        f"{row.id:4} {finding.verdict.upper():8} {row.title[:44]:44} {finding.outcome[:26]:26}"
        f" {finding.attempts:>10} {finding.seconds:7.1f} s  {_why(finding)}"
    ).rstrip()


def markdown(rows: Sequence[Row], preface: str) -> str:
    """The scorecard as a page."""
    lines = [
        "# Fault scorecard",
        "",
        preface,
        "",
        f"Ours: {tally(_ours(rows))}. Published, with two deployments of the model:"
        f" {tally(_published(rows, alone=False))}; with S01 and S03 as there, where the primary is"
        f" the model's only deployment: {tally(_published(rows, alone=True))}.",
        "",
        "| | scenario | outcome | attempts seen upstream | seconds | verdict | not held |",
        "|---|---|---|---|---:|---|---|",
    ]
    for row in rows:
        finding = row.finding
        lines.append(
            f"| {row.id} | {row.title} | {finding.outcome} | {finding.attempts} |"
            f" {finding.seconds:.1f} | {finding.verdict} | {_why(finding)} |"
        )
    lines += ["", "## What each one proves", ""]
    lines += [f"- **{row.id}** {row.proves}" for row in rows]
    return "\n".join(lines) + "\n"


def tally(rows: Sequence[Row]) -> str:
    """How many got each verdict."""
    verdicts = [row.finding.verdict for row in rows]
    counts = [f"{verdicts.count(v)} {v}" for v in Verdict if v in verdicts]
    return f"{', '.join(counts) or 'none run'} of {len(verdicts)}"


def _ours(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.id.startswith("S")]


def _published(rows: Sequence[Row], *, alone: bool) -> list[Row]:
    """Each published scenario once: where it is played in two arrangements, in the one asked."""
    mine = [row for row in rows if row.id.startswith("S")]
    twice = {row.id.removesuffix(ALONE) for row in mine if row.id.endswith(ALONE)}
    left_out = twice if alone else {name + ALONE for name in twice}
    return [row for row in mine if row.id not in left_out]


def _why(finding: Finding) -> str:
    if finding.skipped:
        return finding.skipped
    broken = [
        f"{check.name}{' (advice)' if check.advice else ''}: {check.found}"
        for check in finding.checks
        if not check.held
    ]
    return "; ".join(broken)
