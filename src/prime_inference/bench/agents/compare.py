"""Two runs against each other: paired by what both played, with intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import msgspec

from prime_inference.bench.agents.metrics import Hardware, Slo
from prime_inference.bench.agents.percentiles import percentile
from prime_inference.bench.agents.records import Record
from prime_inference.bench.agents.results import Results, differing
from prime_inference.bench.agents.summary import summarise

RESAMPLES = 1000  # of the bootstrap; the ends of a 95 % interval then rest on 25 each
SEED = 20_26  # of the resampling: the same files give the same interval
MIN_PAIRS = 5  # below this a bootstrap says little, and nothing is called a difference


class NothingToCompare(ValueError):
    """The two runs have no measurement in common."""


class NotComparable(ValueError):
    """Two runs whose difference would not be the server's. `reasons` say what differs."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("the two runs cannot be compared: " + "; ".join(reasons))
        self.reasons = tuple(reasons)


def objections(a: Results, b: Results) -> list[str]:
    """Why a difference between two runs may be another than that of what served them.

    What they are compared for may differ: the server and the model.
    """
    compared_for = ("base_url", "model", "workload")  # a workload is its bytes, not its name
    names = [name for name in differing(a.plan, b.plan) if name not in compared_for]
    found = [f"{', '.join(names)} differ"] if names else []
    for letter, results in (("A", a), ("B", b)):
        if results.state != "complete":
            found.append(f"{letter} is {results.state}")
        for point in summarise(results, Slo(), Hardware()).points:
            found += [f"{letter}, point {point.run.number}: {r}" for r in point.invalid_because]
    return found


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One metric at one setting: A, B, and B/A with its 95 % interval over `pairs` of trees.

    `notices` are what must be said beside it; `differs` is whether that interval leaves 1 out.
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
    notices: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return self.pairs >= MIN_PAIRS and not self.low <= 1 <= self.high


Value = Callable[[Record], float | None]


class _Metric(msgspec.Struct, frozen=True):
    """A percentile of what `value` gives; `inverse` turns seconds a token into tokens a second."""

    unit: str
    value: Value
    q: float
    inverse: bool = False

    def of(self, values: Sequence[float]) -> float:
        found = percentile(values, self.q)
        if not self.inverse:
            return found
        return 1 / found if found else math.inf


def _per_token(record: Record) -> float | None:
    return record.e2el / record.osl if record.osl and record.e2el > 0 else None


METRICS = {
    "e2e_norm_intvty_p50": _Metric("tok/s/user", _per_token, 50, inverse=True),
    "e2e_norm_intvty_p90": _Metric("tok/s/user", _per_token, 90, inverse=True),
    "ttft_p50": _Metric("s", lambda record: record.ttft, 50),
    "ttft_p90": _Metric("s", lambda record: record.ttft, 90),
    "itl_p50": _Metric("s", lambda record: record.itl, 50),
    "itl_p90": _Metric("s", lambda record: record.itl, 90),
}


def compare(a: Results, b: Results, *, anyway: bool = False) -> list[Comparison]:
    """Warm and subagent requests of trees that both runs played at the same setting and seed.

    `anyway` makes the objections notices. Raises NothingToCompare, NotComparable.
    """
    against = objections(a, b)
    if against and not anyway:
        raise NotComparable(against)
    notices = tuple(f"SIMULATED, {letter}: {notice}" for letter, results in (("A", a), ("B", b))
                    for notice in results.provenance.simulated)  # fmt: skip
    notices += tuple(f"NOT COMPARABLE: {reason}" for reason in against)
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
    return [msgspec.structs.replace(one, notices=notices) for one in found]


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
    metric = METRICS[name]

    def values(records: Sequence[Record]) -> list[float]:
        return [value for r in records if (value := metric.value(r)) is not None]

    pairs = [(values(one), values(other)) for one, other in units]

    def both(chosen: Sequence[tuple[list[float], list[float]]]) -> tuple[float, float]:
        return (
            metric.of([value for one, _ in chosen for value in one]),
            metric.of([value for _, other in chosen for value in other]),
        )

    a, b = both(pairs)
    rng = random.Random(f"{SEED} {name}")
    ratios = []
    for _ in range(RESAMPLES):
        one, other = both(rng.choices(pairs, k=len(pairs)))
        ratios.append(other / one if one else math.nan)
    real = [ratio for ratio in ratios if not math.isnan(ratio)]
    return Comparison(
        sessions=setting[0], cold_rate=setting[1], metric=name, unit=metric.unit, a=a, b=b,
        ratio=b / a if a else math.nan, low=percentile(real, 2.5), high=percentile(real, 97.5),
        pairs=len(pairs),
    )  # fmt: skip
