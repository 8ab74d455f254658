"""The results as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prime_inference.bench.gateway.results import (
    Results,
    Spread,
    added_by_streams,
    added_latency,
    disturbance,
    errors,
    per_subject,
    speed_ratio,
    stream_cost,
)

QUIET_SHARE = 0.05  # of the core under test; a kernel and its timers stay below it
USELESS_SHARE = 0.3  # the scheduler's turns, not the subject, then decide the latencies
NOTHING = "-"


def markdown(results: Results, title: str = "The gateway beside its peers") -> str:
    """The whole report."""
    parts = [_head(results), _whole(results), _ratios(results), _streams(results),
             _resources(results), _accounts(results), _foot(results)]  # fmt: skip
    return "\n".join([f"# {title}", "", *(line for part in parts for line in part)])


def _head(results: Results) -> Iterable[str]:
    machine, settings = results.machine, results.settings
    if results.cores.shared:
        placing = "everything on one core: this machine has no second one"
    else:
        placing = (
            f"the thing under test alone on core {results.cores.subject}, one worker;"
            f" load generator and upstream on core {results.cores.load}"
        )
    yield (
        f"{results.made_at}, {machine.cpu}, {machine.cores} cores, Linux {machine.kernel},"
        f" Python {machine.python}; load average before: {machine.load_average}."
        f" Layout: {placing}. {settings.rounds} rounds of {settings.load_seconds:g} s, subjects"
        " taking turns; numbers are medians of rounds, least and greatest in brackets."
    )
    yield from _noise(disturbance(results))


def _noise(disturbed: Spread | None) -> Iterable[str]:
    if disturbed is None or disturbed.greatest <= QUIET_SHARE:
        return
    if disturbed.median > USELESS_SHARE:
        advice = "These numbers are of no use."
    else:
        advice = (
            "Ratios and CPU times can be read; times, requests a second and numbers of streams"
            " are those of a slower machine."
        )
    yield ""
    yield (
        f"**The machine was not quiet:** other processes took {disturbed.median:.0%} of the core"
        f" under test in the median measurement, {disturbed.greatest:.0%} in the worst. {advice}"
    )


def _whole(results: Results) -> Iterable[str]:
    if not results.whole:
        return
    yield ""
    yield "## Whole answers"
    yield ""
    yield f"Generator: {results.generator}. Upstream: {results.whole_upstream}."
    yield ""
    concurrency = results.settings.connections
    head = ["", "version"]
    head += [f"req/s, c={c}" for c in concurrency]
    head += [f"p50 / p90 / p99 ms, c={c}" for c in concurrency]
    yield from _table([*head, "added p50 ms, c=1", "errors"], (
        [name, results.versions.get(name, NOTHING),
         *(_thousands(per_subject(results, name, c, lambda m: m.load.per_second))
           for c in concurrency),
         *(_latencies(results, name, c) for c in concurrency),
         _number(added_latency(results, name), 3) if name != "direct" else NOTHING,
         str(errors(results, name))]
        for name in _names(results)
    ))  # fmt: skip


def _latencies(results: Results, name: str, connections: int) -> str:
    spreads = [
        per_subject(results, name, connections, lambda m: m.load.p50_ms),
        per_subject(results, name, connections, lambda m: m.load.p90_ms),
        per_subject(results, name, connections, lambda m: m.load.p99_ms),
    ]
    return " / ".join(f"{s.median:.2f}" for s in spreads if s is not None) or NOTHING


def _ratios(results: Results) -> Iterable[str]:
    names, ours = _names(results), results.ours
    peers = [name for name in names if name not in ("direct", ours)]
    if not peers or ours not in names or not results.whole:
        return
    yield ""
    yield f"## Requests a second, {ours} over the others"
    yield ""
    yield "Each measurement of another is set against the nearest one in time."
    yield ""
    concurrency = results.settings.connections
    yield from _table(["", *(f"c={c}" for c in concurrency)], (
        [peer, *(_number(speed_ratio(results, ours, peer, c), 2) for c in concurrency)]
        for peer in peers
    ))  # fmt: skip


def _streams(results: Results) -> Iterable[str]:
    if not results.latency:
        return
    settings = results.settings
    yield ""
    yield "## Streams"
    yield ""
    yield (
        f"64 deltas, {settings.pace_ms:g} ms apart, by the mock engine. Added times at"
        f" {settings.latency_streams} streams."
    )
    yield ""
    head = ["", "added first event p50 ms", "p99 ms", "added gap p50 ms", "p99 ms"]
    yield from _table(head, (
        [name,
         _number(added_by_streams(results, name, lambda s: s.ttft_p50_ms), 2),
         _number(added_by_streams(results, name, lambda s: s.ttft_p99_ms), 2),
         _number(added_by_streams(results, name, lambda s: s.gap_p50_ms), 2),
         _number(added_by_streams(results, name, lambda s: s.gap_p99_ms), 2)]
        for name in _names(results) if name != "direct"
    ))  # fmt: skip
    yield from _most(results)


def _most(results: Results) -> Iterable[str]:
    if not results.most:
        return
    yield ""
    yield (
        "Largest number carried at once: no frame lost, no gap over ten times the pace, first"
        " event within 1 s, at most 0.1 % errors. Sought up to"
        f" {results.settings.most_streams}; what `direct` carries is the limit of generator and"
        " mock."
    )
    yield ""
    yield from _table(["", "streams"], (
        [name, _thousands(Spread.of(most))] for name, most in results.most.items()
    ))  # fmt: skip


def _resources(results: Results) -> Iterable[str]:
    if not results.memory:
        return
    most = max(results.settings.connections)
    yield ""
    yield "## Memory and CPU"
    yield ""
    head = ["", "idle MiB", "after load MiB", "after streams MiB",
            f"CPU ms per 1,000 requests, c={most}",
            f"CPU ms per 1,000 events, {results.settings.latency_streams} streams"]  # fmt: skip
    yield from _table(head, (
        [name, f"{memory.idle_mib:.0f}", _mib(memory.after_load_mib),
         _mib(memory.after_streams_mib),
         _number(per_subject(results, name, most, lambda m: m.cpu_ms_per_1000), 0),
         _number(stream_cost(results, name), 0)]
        for name, memory in results.memory.items()
    ))  # fmt: skip


def _accounts(results: Results) -> Iterable[str]:
    found = results.accounts
    if found is None:
        return
    yield ""
    yield "## Accounts"
    yield ""
    yield (
        f"Our gateway with a price and a budget beside the plain one, c={found.connections};"
        " the shipper, a process of its own, waits meanwhile and then has the core to itself."
    )
    yield ""
    head = ["CPU us per request, plain", "with accounts", "added",
            f"events/s shipped into {found.database}", "CPU us per event, shipper"]  # fmt: skip
    yield from _table(head, [
        [f"{found.plain_us:.1f}", f"{found.billed_us:.1f}",
         f"{found.billed_us - found.plain_us:.1f}",
         f"{found.shipped_per_second:,.0f}", f"{found.shipper_us:.0f}"]
    ])  # fmt: skip


def _foot(results: Results) -> Iterable[str]:
    if results.left_out:
        yield ""
        yield "Left out: " + "; ".join(f"{k}: {v}" for k, v in results.left_out.items()) + "."
    yield ""


def _names(results: Results) -> list[str]:
    return results.subjects


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _number(spread: Spread | None, digits: int) -> str:
    if spread is None:
        return NOTHING
    if spread.least == spread.greatest:
        return f"{spread.median:.{digits}f}"
    return f"{spread.median:.{digits}f} ({spread.least:.{digits}f}-{spread.greatest:.{digits}f})"


def _thousands(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    if spread.least == spread.greatest:
        return f"{spread.median:,.0f}"
    return f"{spread.median:,.0f} ({spread.least:,.0f}-{spread.greatest:,.0f})"


def _mib(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}"
