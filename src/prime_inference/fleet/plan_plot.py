"""A plan as one figure: where a GPU's memory goes, and how much cache that leaves."""

from __future__ import annotations

from pathlib import Path

from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.plan import Plan


class PlotUnavailable(FleetError):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("no plot: install the extra, pip install 'prime-inference[bench]'")


def draw(plan: Plan, path: Path) -> None:
    """Write the figure; the file's ending says the format. Raises PlotUnavailable, OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotUnavailable from None
    figure = Figure(figsize=(10.0, 4.2 * len(plan.candidates)), layout="constrained")
    axes = figure.subplots(len(plan.candidates), 2, squeeze=False)
    for (role, candidates), (memory, cache) in zip(plan.candidates.items(), axes, strict=True):
        names = [one.parallel for one in candidates]
        bottom = [0.0] * len(names)
        for part in ("weights", "activations", "cache", "unused"):
            heights = [getattr(one.memory, part) / 1e9 for one in candidates]
            memory.bar(names, heights, bottom=bottom, label=part)
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        memory.set_ylabel(f"GB of a {plan.gpu}")
        memory.set_title(f"{role}: memory of one GPU")
        memory.legend()
        low = [one.usable_low / one.gpus / 1e6 for one in candidates]
        high = [one.usable_high / one.gpus / 1e6 for one in candidates]
        cache.bar(names, high, color="tab:green", alpha=0.4, label="even placement")
        cache.bar(names, low, color="tab:green", label="random placement")
        cache.set_ylabel("million tokens")
        cache.set_title(f"{role}: usable cache for each GPU")
        cache.legend()
    figure.suptitle(f"{plan.model}: derived, not measured")
    figure.savefig(path, dpi=110)
