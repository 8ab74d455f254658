"""What the commands of `prime inference bench` share: their failures and their summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prime_inference.cli.failures import CommandFailed, WrongUsage
from prime_inference.cli.terminal import Column, Terminal

if TYPE_CHECKING:
    from prime_inference.bench.agents.summary import Summary


class BenchFailed(CommandFailed):
    """A benchmark could not be done, or its result is not to be trusted."""

    code = "bench_failed"


@contextmanager
def failures() -> Iterator[None]:
    """Errors of the benchmark as failures of the command."""
    from prime_inference.bench.agents.compare import NotComparable, NothingToCompare
    from prime_inference.bench.agents.endpoint import EndpointRefused
    from prime_inference.bench.agents.prompts import PromptTooShort
    from prime_inference.bench.agents.results import ResultsInvalid
    from prime_inference.bench.agents.scale import CannotScale
    from prime_inference.bench.agents.tool_calls import ToolsInvalid
    from prime_inference.bench.agents.traces import TraceError
    from prime_inference.bench.agents.vocabulary import CalibrationFailed

    wrong = (TraceError, CannotScale, ToolsInvalid, PromptTooShort, ResultsInvalid)
    try:
        yield
    except wrong as error:
        raise WrongUsage(str(error)) from error
    except NotComparable as error:
        raise BenchFailed(
            str(error), hint="--anyway compares them, and says so beside it"
        ) from error
    except (CalibrationFailed, NothingToCompare) as error:
        raise BenchFailed(str(error)) from error
    except EndpointRefused as error:
        raise BenchFailed(f"The endpoint did not answer a first small request: {error}") from error
    except OSError as error:
        raise BenchFailed(f"{error.filename or ''} {error.strerror}".strip()) from error


def write_summary(folder: Path, slo: Any, hardware: Any, terminal: Terminal) -> Summary:
    import msgspec

    from prime_inference.bench.agents.report import PlotsUnavailable, write_report
    from prime_inference.bench.agents.results import read_results
    from prime_inference.bench.agents.summary import summarise

    with failures():
        results = read_results(folder)
        summary = summarise(results, slo, hardware)
        text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
        (folder / "summary.json").write_bytes(text)
        try:
            write_report(folder, summary, results)
        except PlotsUnavailable as error:
            terminal.note(str(error))
    return summary


def print_summary(summary: Summary, terminal: Terminal, *, as_json: bool) -> None:
    import msgspec

    if as_json:
        terminal.json(msgspec.json.decode(msgspec.json.encode(summary)))
        return
    titles = ("sessions", "cold/s", "seeds", "E2E P50 tok/s/user", "E2E P90 tok/s/user",
              "TTFT P90 s", "output tok/s/GPU", "goodput", "valid")  # fmt: skip
    columns = [Column(title, align="right") for title in titles]
    rows = [
        [str(s.sessions), f"{s.cold_rate:g}", str(s.seeds), f"{s.warm_e2e_p50.median:.1f}",
         f"{s.warm_e2e_p90.median:.1f}", f"{s.warm_ttft_p90.median:.3f}",
         f"{s.output_tps_per_gpu.median:.1f}", f"{s.goodput_share.median:.1%}",
         "yes" if s.valid else "NO"] for s in summary.settings
    ]  # fmt: skip
    for notice in summary.provenance.simulated:
        terminal.line(f"SIMULATED: {notice}")
    terminal.table("warm requests; output of all requests", columns, rows)
    for point in summary.points:
        found = point.classes.get("all")
        if found and (found.usage_doubtful or found.prompt_mismatches or found.impossible_hits):
            terminal.line(
                f"USAGE, point {point.run.number}: of {found.ok} answers {found.usage_doubtful}"
                f" tell doubtful output tokens, {found.prompt_mismatches} other prompt tokens,"
                f" {found.impossible_hits} impossible cached tokens"
            )


def require_valid(summary: Summary) -> None:
    """A number that is not to be trusted does not end in success."""
    reasons = [f"point {p.run.number}: {r}" for p in summary.points for r in p.invalid_because]
    if reasons:
        raise BenchFailed("Not valid: " + "; ".join(reasons))
