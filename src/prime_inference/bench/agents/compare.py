"""Two runs against each other: paired by what both played, with intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.results import Results

RESAMPLES = 1000  # of the bootstrap; the ends of a 95 % interval then rest on 25 each
SEED = 20_26  # of the resampling: the same files give the same interval
MIN_PAIRS = 5  # below this a bootstrap says little, and nothing is called a difference


class NothingToCompare(ValueError):
    """The two runs have no measurement in common."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric at one setting: A, B, and B/A with its 95 % interval over `pairs` of trees.

    `differs` is whether that interval leaves 1 out.
    """

    sessions: int
    cold_rate: float
    metric: str
    unit: str
    a: float
    b: float
    ratio: float
    low: float
    high: float
    pairs: int

    @property
    def differs(self) -> bool:
        return self.pairs >= MIN_PAIRS and not self.low <= 1 <= self.high


Records = Sequence[Record]
Metric = Callable[[Records], float]


def _interactivity(q: float) -> Metric:
    def found(records: Records) -> float:
        value = percentile([r.e2el / r.osl for r in records if r.osl and r.e2el > 0], q)
        return 1 / value if value else math.inf

    return found


def _ttft(q: float) -> Metric:
    return lambda records: percentile([t for r in records if (t := r.ttft) is not None], q)


def _itl(records: Records) -> float:
    return percentile([itl for r in records if (itl := r.itl) is not None], 50)


METRICS: dict[str, tuple[str, Metric]] = {
    "e2e_norm_intvty_p50": ("tok/s/user", _interactivity(50)),
    "e2e_norm_intvty_p90": ("tok/s/user", _interactivity(90)),
    "ttft_p50": ("s", _ttft(50)),
    "ttft_p90": ("s", _ttft(90)),
    "itl_p50": ("s", _itl),
}


def compare(a: Results, b: Results) -> list[Comparison]:
    """Warm and subagent requests of trees that both runs played at the same setting and seed.

    Raises NothingToCompare.
    """
    ours, theirs = _by_setting(a), _by_setting(b)
    found: list[Comparison] = []
    for setting in sorted(ours.keys() & theirs.keys()):
        one, other = ours[setting], theirs[setting]
        pairs = sorted(one.keys() & other.keys())
        if pairs:
            units = [(one[key], other[key]) for key in pairs]
            found += [_compared(setting, name, units) for name in METRICS]
    if not found:
        raise NothingToCompare("the two runs share no session at the same setting and seed")
    return found


Tree = tuple[int, str]


def _by_setting(results: Results) -> dict[tuple[int, float], dict[Tree, list[Record]]]:
    """Successful session requests by setting, then by seed and tree."""
    points = {run.number: run.point for run in results.points}
    found: dict[tuple[int, float], dict[Tree, list[Record]]] = {}
    for record in results.records:
        point = points.get(record.point)
        counted = record.phase == "profiling" and record.ok and record.kind != "cold"
        if point is None or not counted:
            continue
        trees = found.setdefault((point.sessions, point.cold_rate), {})
        trees.setdefault((point.seed, record.session.partition("/")[0]), []).append(record)
    return found


def _compared(
    setting: tuple[int, float], name: str, units: Sequence[tuple[list[Record], list[Record]]]
) -> Comparison:
    unit, metric = METRICS[name]

    def both(chosen: Sequence[tuple[list[Record], list[Record]]]) -> tuple[float, float]:
        return (
            metric([record for one, _ in chosen for record in one]),
            metric([record for _, other in chosen for record in other]),
        )

    a, b = both(units)
    rng = random.Random(f"{SEED} {name}")
    ratios = []
    for _ in range(RESAMPLES):
        one, other = both(rng.choices(units, k=len(units)))
        ratios.append(other / one if one else math.nan)
    real = [ratio for ratio in ratios if not math.isnan(ratio)]
    return Comparison(
        sessions=setting[0], cold_rate=setting[1], metric=name, unit=unit, a=a, b=b,
        ratio=b / a if a else math.nan, low=percentile(real, 2.5), high=percentile(real, 97.5),
        pairs=len(units),
    )  # fmt: skip
