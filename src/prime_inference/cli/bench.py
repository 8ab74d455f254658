"""`prime inference bench`: replay agents' sessions against an endpoint, and what came of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_inference.cli.bench_options import (
    DEFAULT_CONCURRENCY,
    CancelShare,
    ColdBurst,
    ColdInput,
    ColdOutput,
    ColdRates,
    Concurrency,
    ExtraBody,
    Faults,
    FindConcurrency,
    Form,
    Gpus,
    Grace,
    Highest,
    IdleCap,
    IgnoreEos,
    LagBound,
    MaxContext,
    Model,
    Notes,
    Out,
    OutputScale,
    Overwrite,
    Price,
    Resume,
    ScaleOption,
    Seconds,
    Seeds,
    SessionRate,
    Sessions,
    Simulated,
    Slos,
    StartWindow,
    SystemIdleCap,
    Timeout,
    TimeScale,
    ToolsFile,
    Trace,
    Url,
    WarmupRequests,
    key_headers,
    log_normal,
    numbers,
    options_of,
    require_free,
    require_traffic,
    scale_of,
    searchable,
    workload_of,
    wrong_values,
)
from prime_inference.cli.bench_run import BenchRun
from prime_inference.cli.bench_summary import (
    failures,
    print_summary,
    require_valid,
    write_summary,
)
from prime_inference.cli.options import Command, Group, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Column, Terminal

app = typer.Typer(cls=Group, no_args_is_help=True, help="Benchmarks of agents' traffic.")


@app.callback()
def group(plain: Plain = False) -> None:
    """Replay agents' sessions against an endpoint, with cold arrivals beside them."""


SUMMARY_SHAPE = "The summary: {provenance, plan, state, points: [...], settings: [...]}"


@app.command("generate", cls=Command, epilog=json_help("The workload's statistics."))
def generate(
    out: Annotated[Path, typer.Option("--out", help="File to write, one session a line.")],
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="How many.")] = 16,
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same bytes.")] = 0,
    scale: ScaleOption = 1.0,
    output_scale: OutputScale = None,
    time_scale: TimeScale = 1.0,
    max_context: MaxContext = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Write made-up sessions with the statistics of AgentX's corpus, in its own form.

    Examples:
      prime inference bench generate --sessions 50 --scale 0.03125 --out small.jsonl
    """
    import msgspec

    from prime_inference.bench.agents.traces.write import weka_objects
    from prime_inference.bench.agents.workload import statistics

    with failures():
        wanted = scale_of(scale, output_scale, time_scale, max_context)
        workload = workload_of(None, None, sessions, seed, wanted)
        with out.open("wb") as file:
            for trace in weka_objects(workload):
                file.write(msgspec.json.encode(trace) + b"\n")
    found = msgspec.to_builtins(statistics(workload))
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json(found)
        return
    terminal.table(str(out), *_values("statistic", found, digits=4))


@app.command("run", cls=Command, epilog=json_help(SUMMARY_SHAPE))
def run(
    url: Url,
    model: Model,
    out: Out,
    trace: Trace = None,
    form: Form = None,
    sessions: Sessions = 64,
    concurrency: Concurrency = None,
    cold_rate: ColdRates = "0",
    seeds: Seeds = "42",
    seconds: Seconds = 3600.0,
    session_rate: SessionRate = None,
    start_window: StartWindow = "0.25-0.75",
    warmup_requests: WarmupRequests = 10,
    idle_cap: IdleCap = 300.0,
    system_idle_cap: SystemIdleCap = 10.0,
    grace: Grace = 60.0,
    timeout: Timeout = 600.0,
    scale: ScaleOption = 1.0,
    output_scale: OutputScale = None,
    time_scale: TimeScale = 1.0,
    max_context: MaxContext = None,
    cold_input: ColdInput = None,
    cold_output: ColdOutput = None,
    cold_burst: ColdBurst = 1,
    cancel_share: CancelShare = 0.0,
    fault: Faults = None,
    tools: ToolsFile = None,
    ignore_eos: IgnoreEos = True,
    extra_body: ExtraBody = None,
    lag_bound: LagBound = 0.010,
    slo: Slos = None,
    find_concurrency: FindConcurrency = False,
    highest: Highest = 4096,
    gpus: Gpus = 1,
    price: Price = None,
    simulated: Simulated = None,
    note: Notes = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Measure an endpoint over every combination of concurrency, cold rate and seed.

    Examples:
      prime inference bench run --url http://127.0.0.1:8000/api/v1 --model acme/m --out r1
      prime inference bench run ... --trace sessions.jsonl --concurrency 8,16,32 --seeds 1,2,3
      prime inference bench run ... --cold-rate 0.5 --find-concurrency --slo e2e=100
    """
    from prime_inference.bench.agents.metrics import Hardware, Slo
    from prime_inference.bench.agents.run import Target

    terminal = Terminal(plain=plain)
    target = Target(
        base_url=url, model=model, headers=key_headers(os.environ, url),
        simulated=tuple(simulated or ()), notes=tuple(note or ()),
    )  # fmt: skip
    with wrong_values():
        wanted = Slo.parse(slo or ())
        counts = numbers(DEFAULT_CONCURRENCY if concurrency is None else concurrency, int)
        rates = numbers(cold_rate, float)
        seed_list = numbers(seeds, int)
        options = options_of(
            seconds=seconds, session_rate=session_rate, start_window=start_window,
            warmup_requests=warmup_requests, idle_cap=idle_cap, grace=grace, timeout=timeout,
            system_idle_cap=system_idle_cap or None,
            scale=scale_of(scale, output_scale, time_scale, max_context, idle_cap),
            cold_burst=cold_burst,
            cold_input=log_normal(cold_input, scale, 142_016, 0.8),
            cold_output=log_normal(cold_output, output_scale or scale, 444, 1.0),
            cancel_share=cancel_share, faults=fault, ignore_eos=ignore_eos, extra=extra_body,
            lag_bound=lag_bound,
        )  # fmt: skip
    require_traffic(counts, rates, concurrency, session_rate)
    if find_concurrency:
        searchable(wanted, counts, rates, open_loop=session_rate is not None, resume=resume)
    if not resume:
        require_free(out, overwrite=overwrite)
    bench = BenchRun(
        target=target, slo=wanted, counts=counts, rates=rates, seeds=seed_list, options=options,
        hardware=Hardware(gpus, price), highest=highest if find_concurrency else None, out=out,
        read_workload=lambda: workload_of(trace, form, sessions, seed_list[0], options.scale),
        tools=tools, resume=resume,
    )  # fmt: skip
    summary = bench.measured(terminal, plain=plain)
    print_summary(summary, terminal, as_json=output == "json")
    require_valid(summary)


@app.command("report", cls=Command, epilog=json_help(SUMMARY_SHAPE))
def report(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    slo: Slos = None,
    gpus: Gpus = 1,
    price: Price = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Write summary, report and plots of a run anew, for another SLO or price.

    Examples:
      prime inference bench report r1 --slo e2e=100 --slo ttft=2 --gpus 8 --price 3.5
    """
    from prime_inference.bench.agents.metrics import Hardware, Slo

    terminal = Terminal(plain=plain)
    with wrong_values():
        wanted = Slo.parse(slo or ())
    summary = write_summary(folder, wanted, Hardware(gpus, price), terminal)
    print_summary(summary, terminal, as_json=output == "json")


@app.command("compare", cls=Command, epilog=json_help("[{metric, a, b, ratio, low, high, ...}]"))
def compare(
    a: Annotated[Path, typer.Argument(help="A run's folder.")],
    b: Annotated[Path, typer.Argument(help="Another's.")],
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare runs that differ, or are not valid.")
    ] = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """What changed from A to B, paired by seed and session, with 95 % intervals.

    Examples:
      prime inference bench compare before after
    """
    import msgspec

    from prime_inference.bench.agents.compare import compare as compared
    from prime_inference.bench.agents.results import read_results

    with failures():
        found = compared(read_results(a), read_results(b), anyway=anyway)
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json(msgspec.to_builtins(found))
        return
    for notice in found[0].notices:
        terminal.line(notice)
    titles = ("sessions", "cold/s", "metric", "A", "B", "B/A", "95 % interval", "pairs", "differs")
    columns = [Column(t, align="left" if t in ("metric", "differs") else "right") for t in titles]
    terminal.table(f"{a} against {b}", columns, [
        [str(c.sessions), f"{c.cold_rate:g}", f"{c.metric} ({c.unit})", f"{c.a:.4g}", f"{c.b:.4g}",
         f"{c.ratio:.3f}", f"{c.low:.3f} to {c.high:.3f}", str(c.pairs),
         "yes" if c.differs else "no"] for c in found
    ])  # fmt: skip


@app.command("export", cls=Command, epilog=json_help("{rows}"))
def export(
    trace: Annotated[Path, typer.Argument(help="Sessions of counts and block ids.")],
    url: Url,
    model: Model,
    out: Annotated[Path, typer.Option("--out", help="File to write, one turn a line.")],
    form: Form = None,
    idle_cap: IdleCap = 300.0,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Write sessions as the very messages that would be sent, for another harness.

    The form is Mooncake's with messages, which aiperf reads; the text suits the endpoint's
    tokenizer.

    Examples:
      prime inference bench export s.jsonl --url http://127.0.0.1:9000/v1 --model m --out m.jsonl
    """
    import asyncio

    import msgspec

    from prime_inference.bench.agents.endpoint import vocabulary_of
    from prime_inference.bench.agents.traces.write import message_rows

    with failures():
        workload = workload_of(trace, form, 1, 0, scale_of(idle=idle_cap))
        vocabulary = asyncio.run(vocabulary_of(url, model, key_headers(os.environ, url)))
        lines = [msgspec.json.encode(row) for row in message_rows(workload, vocabulary)]
        out.write_bytes(b"\n".join(lines) + b"\n")
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json({"rows": len(lines)})
    else:
        terminal.line(f"{len(lines)} turns in {out}")


@app.command("limit", cls=Command, epilog=json_help("{streams, tokens_per_second, ...}"))
def limit(
    streams: Annotated[int, typer.Option("--streams", min=1, help="Streams at a time.")] = 2000,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Tokens/s a stream.")] = 50.0,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="How long.")] = 10.0,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Measure the load generator itself, against a server that only keeps time.

    Examples:
      prime inference bench limit --streams 2000 --rate 50
    """
    import msgspec
    import uvloop

    from prime_inference.bench.agents.limit import measured_limit

    found = msgspec.to_builtins(uvloop.run(measured_limit(streams, rate, seconds)))
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json(found)
        return
    terminal.table("the generator's limit", *_values("what", found, digits=6))


def _values(
    title: str, found: dict[str, Any], *, digits: int
) -> tuple[list[Column], list[list[str]]]:
    """A table of names and what each is."""
    rows = [
        [name, f"{value:,.{digits}g}" if isinstance(value, float) else str(value)]
        for name, value in found.items()
    ]
    return [Column(title), Column("value", align="right")], rows
