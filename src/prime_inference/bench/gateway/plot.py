"""The results as one picture. Needs the extra `bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prime_inference.bench.gateway.results import Results, Spread, added_latency, per_subject

OURS_COLOUR = "#1f5fbf"
PEER_COLOUR = "#b8bec8"


def draw(results: Results, path: Path) -> None:
    """Four panels: requests a second, added latency, streams, memory."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    most = max(results.settings.connections)
    figure, panels = pyplot.subplots(2, 2, figsize=(11, 7), layout="constrained")
    _panel(
        panels[0][0], f"requests a second, c={most} (log)", results,
        lambda name: per_subject(results, name, most, lambda m: m.load.per_second), log=True,
    )  # fmt: skip
    _panel(
        panels[0][1], "added p50 at c=1, ms (log)", results,
        lambda name: added_latency(results, name) if name != "direct" else None, log=True,
    )  # fmt: skip
    _panel(
        panels[1][0], "streams carried without a stall", results,
        lambda name: Spread.of(results.most.get(name, [])),
    )  # fmt: skip
    _panel(panels[1][1], "memory after load, MiB", results, lambda name: _memory(results, name))
    figure.suptitle(f"One core each, {results.machine.cpu}, {results.made_at[:10]}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _memory(results: Results, name: str) -> Spread | None:
    footprint = results.memory.get(name)
    if footprint is None or footprint.after_load_mib is None:
        return None
    return Spread.of([footprint.after_load_mib])


def _panel(
    axes: Any, title: str, results: Results, value: Callable[[str], Spread | None],
    log: bool = False,
) -> None:  # fmt: skip
    found = [(name, s) for name in results.subjects if (s := value(name)) is not None]
    found = [(name, s) for name, s in found if not log or s.least > 0]
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    if not found:
        return
    names = [name for name, _ in found]
    medians = [spread.median for _, spread in found]
    below = [spread.median - spread.least for _, spread in found]
    above = [spread.greatest - spread.median for _, spread in found]
    colours = [OURS_COLOUR if name == results.ours else PEER_COLOUR for name in names]
    bars = axes.barh(names, medians, xerr=[below, above], color=colours, ecolor="#555555")
    axes.bar_label(bars, labels=[f" {m:,.3g}" if m < 10 else f" {m:,.0f}" for m in medians])
    axes.invert_yaxis()
    axes.margins(x=0.2)
    if log:
        axes.set_xscale("log")
