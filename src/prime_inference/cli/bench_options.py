"""Options of `prime inference bench`, and how their texts become values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from prime_inference.cli.failures import WrongUsage

if TYPE_CHECKING:
    from prime_inference.bench.agents.generate import LogNormal
    from prime_inference.bench.agents.metrics import Slo
    from prime_inference.bench.agents.plan import Options
    from prime_inference.bench.agents.scale import Scale
    from prime_inference.bench.agents.workload import Workload

Number = TypeVar("Number", int, float)

Url = Annotated[str, typer.Option("--url", help="Base URL of an OpenAI-compatible API.")]
Model = Annotated[str, typer.Option("--model", help="The model's name there.")]
Out = Annotated[Path, typer.Option("--out", help="Folder of the results.")]
Trace = Annotated[
    Path | None, typer.Option("--trace", help="Sessions to replay. Default: generated ones.")
]
Form = Annotated[
    str | None,
    typer.Option("--form", metavar="weka|mooncake|multi-turn", help="Default: by its first line."),
]
Sessions = Annotated[int, typer.Option("--sessions", min=1, help="Sessions to generate.")]
DEFAULT_CONCURRENCY = "8"  # a developer's handful of agents; any server carries it
Concurrency = Annotated[
    str | None,
    typer.Option(
        "--concurrency", metavar="N,...", help="Sessions at a time, to sweep over. Default: 8."
    ),
]
ColdRates = Annotated[
    str, typer.Option("--cold-rate", metavar="R,...", help="Cold arrivals a second.")
]
Seeds = Annotated[str, typer.Option("--seeds", metavar="N,...", help="Repeats, a seed each.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, help="Profiling of a point.")]
SessionRate = Annotated[
    float | None,
    typer.Option("--session-rate", help="Open loop: sessions started a second, for --concurrency."),
]
StartWindow = Annotated[
    str, typer.Option("--start-window", metavar="A-B", help="Share of a first session played.")
]
WarmupRequests = Annotated[
    int, typer.Option("--warmup-requests", min=0, help="Extra one-token requests of a lane.")
]
IdleCap = Annotated[float, typer.Option("--idle-cap", min=0, help="Longest delay, seconds.")]
SystemIdleCap = Annotated[
    float,
    typer.Option(
        "--system-idle-cap", min=0, help="Longest time without any request in flight; 0: no cap."
    ),
]
Grace = Annotated[float, typer.Option("--grace", min=0, help="Seconds for the last answers.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds for one request.")]
ScaleOption = Annotated[float, typer.Option("--scale", help="Factor on input tokens.")]
OutputScale = Annotated[
    float | None, typer.Option("--output-scale", help="Factor on output. Default: --scale.")
]
TimeScale = Annotated[float, typer.Option("--time-scale", help="Factor on delays.")]
MaxContext = Annotated[
    int | None, typer.Option("--max-context", min=1, help="End sessions before this many tokens.")
]
ColdInput = Annotated[
    str | None,
    typer.Option("--cold-input", metavar="MEDIAN[:SIGMA]", help="Default: 142016:0.8, scaled."),
]
ColdOutput = Annotated[
    str | None,
    typer.Option("--cold-output", metavar="MEDIAN[:SIGMA]", help="Default: 444:1, scaled."),
]
ColdBurst = Annotated[int, typer.Option("--cold-burst", min=1, help="Arrivals at once.")]
CancelShare = Annotated[
    float, typer.Option("--cancel-share", min=0, max=1, help="Requests given up half-way.")
]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="SECONDS:COMMAND", help="Run a command then; repeatable."),
]
ToolsFile = Annotated[
    Path | None, typer.Option("--tools", help="JSON list of tools; calls are validated.")
]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos/--no-ignore-eos", help="Ask for all tokens; a gateway may refuse the field."
    ),
]
ExtraBody = Annotated[
    str | None, typer.Option("--extra-body", metavar="JSON", help="More fields of each request.")
]
LagBound = Annotated[
    float, typer.Option("--lag-bound", min=0, help="Seconds at p99 the generator may be late.")
]
Slos = Annotated[
    list[str] | None,
    typer.Option("--slo", metavar="e2e=N|ttft=S", help="Target for goodput; repeatable."),
]
FindConcurrency = Annotated[
    bool,
    typer.Option("--find-concurrency", help="Search from --concurrency for the most."),
]
Highest = Annotated[int, typer.Option("--highest", min=1, help="Where the search ends.")]
Gpus = Annotated[
    int, typer.Option("--gpus", min=1, help="GPUs that serve: tp·pp·pcp, or prefill + decode.")
]
Price = Annotated[float | None, typer.Option("--price", min=0, help="Of a GPU hour.")]
Simulated = Annotated[
    list[str] | None,
    typer.Option("--simulated", help="What is not real; said on every figure. Repeatable."),
]
Notes = Annotated[
    list[str] | None, typer.Option("--note", help="For the provenance, e.g. engine flags.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Keep finished points of --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]


@contextmanager
def wrong_values() -> Iterator[None]:
    """A value that cannot be is wrong usage: what raises ValueError here read an option."""
    try:
        yield
    except ValueError as error:
        raise WrongUsage(str(error)) from error


def numbers(text: str, kind: Callable[[str], Number]) -> list[Number]:
    """`1,2,3`, each once. Raises ValueError."""
    found = [kind(part) for part in text.split(",") if part.strip()]
    if not found or not all(0 <= number < math.inf for number in found):
        raise ValueError(f"numbers with commas between are due, not {text!r}")
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r} holds a number twice: the same point would be measured again")
    return found


def require_traffic(
    counts: Sequence[int], rates: Sequence[float], concurrency: str | None,
    session_rate: float | None,
) -> None:  # fmt: skip
    """Raises WrongUsage for a run that would send nothing, or both open and close its loop."""
    if session_rate is None and 0 in counts and 0 in rates:
        raise WrongUsage("Nothing would be sent with --concurrency 0 and --cold-rate 0.")
    if session_rate is not None and concurrency is not None:
        raise WrongUsage("--session-rate opens the loop; --concurrency does not go with it.")


def searchable(
    slo: Slo, counts: Sequence[int], rates: Sequence[float], *, open_loop: bool, resume: bool
) -> None:
    """Raises WrongUsage for what a search for the concurrency cannot heed."""
    if slo.e2e is None:
        raise WrongUsage("--find-concurrency needs a target: --slo e2e=TOKENS_PER_SECOND.")
    if len(counts) > 1 or len(rates) > 1:
        raise WrongUsage("--find-concurrency takes one --concurrency and one --cold-rate.")
    if not counts[0]:
        raise WrongUsage("--find-concurrency begins with at least 1 session.")
    if open_loop:
        raise WrongUsage("--find-concurrency is of a closed loop; --session-rate opens it.")
    if resume:
        raise WrongUsage("--find-concurrency cannot go on with --resume; it begins anew.")


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Raises WrongUsage if a run's results are there and are not to be replaced."""
    if (folder / "results.json").exists() and not overwrite:
        raise WrongUsage(
            f"{folder} holds a run already.",
            hint="--resume goes on with it, --overwrite replaces it.",
        )


def log_normal(text: str | None, scale: float, median: float, sigma: float) -> LogNormal:
    """`MEDIAN[:SIGMA]`, or the default times `scale`. Raises ValueError."""
    from prime_inference.bench.agents.generate import LogNormal

    if text is not None:
        middle, _, spread = text.partition(":")
        median, sigma = float(middle), float(spread) if spread else 0.0
        if not (0 < median < math.inf and 0 <= sigma < math.inf):
            raise ValueError(f"a length is MEDIAN[:SIGMA], a median above 0, not {text!r}")
    else:
        median *= scale
    # within a factor of a hundred: a draw beyond that is none that a trace has shown
    return LogNormal(median, sigma, median / 100, median * 100)


def scale_of(
    factor: float = 1.0, output: float | None = None, time: float = 1.0,
    max_context: int | None = None, idle: float | None = None,
) -> Scale:  # fmt: skip
    """How small a workload is made. Raises WrongUsage."""
    from prime_inference.bench.agents.scale import Scale

    with wrong_values():
        return Scale(input=factor, output=output, time=time, max_context=max_context, idle=idle)


def options_of(
    *, start_window: str, faults: Sequence[str] | None, extra: str | None, **rest: Any
) -> Options:
    """The rules of a run from its options. Raises ValueError."""
    import msgspec

    from prime_inference.bench.agents.plan import Fault, Options

    low, _, high = start_window.partition("-")
    return Options(
        start_window=(float(low), float(high or low)),
        faults=tuple(Fault.parse(fault) for fault in faults or ()),
        extra=msgspec.json.decode(extra, type=dict[str, Any]) if extra else {},
        **rest,
    )


def workload_of(
    trace: Path | None, form: str | None, sessions: int, seed: int, scale: Scale
) -> Workload:
    """Read or generated, then scaled. Raises WrongUsage and what reading raises."""
    from prime_inference.bench.agents.generate import generate
    from prime_inference.bench.agents.scale import scaled
    from prime_inference.bench.agents.traces import FORMS, read_trace

    if form is not None and form not in FORMS:
        raise WrongUsage(f"--form must be one of: {', '.join(FORMS)}; not {form!r}.")
    workload = generate(sessions, seed) if trace is None else read_trace(trace, form)
    small = scaled(workload, scale)
    if not small.sessions:
        raise WrongUsage("No session is left; is --max-context too small?")
    return small


def key_headers(environ: Mapping[str, str], url: str) -> bytes:
    """The Authorization header: the key of the environment, else of the local server."""
    from prime_inference.cli.folders import state_folder
    from prime_inference.cli.local_server import find_local_server
    from prime_inference.cli.settings import same_origin

    key = environ.get("PRIME_API_KEY")
    if not key:
        local = find_local_server(state_folder(environ, Path.home()))
        key = local.api_key if local is not None and same_origin(local.base_url, url) else None
    return f"authorization: Bearer {key}\r\n".encode() if key else b""
