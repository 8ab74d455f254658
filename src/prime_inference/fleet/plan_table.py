"""A plan as tables of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prime_inference.fleet.plan import Plan

CANDIDATE_COLUMNS = (
    "spread", "weights", "activ.", "cache", "tokens", "usable", "sessions", "TTFT s", "ITL ms",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Cells of text; the first row names the columns, of which all but the first are numbers."""

    title: str
    rows: Sequence[Sequence[str]]


def tables(plan: Plan) -> Iterator[PlanTable]:
    """In the order in which they are read."""
    yield PlanTable(
        f"KV cache of {plan.model}",
        [
            ("format", "B/row", "B/token", "over FP8"),
            *(
                (
                    row.format,
                    f"{row.row_bytes}",
                    f"{row.bytes_per_token}",
                    f"{row.gain_over_fp8:.3f}",
                )
                for row in plan.rows
            ),
        ],
    )
    for role, candidates in plan.candidates.items():
        yield PlanTable(
            f"{role}, one replica on {plan.gpu}: GB a GPU, M tokens a replica, roofline",
            [
                CANDIDATE_COLUMNS,
                *(
                    (
                        one.parallel,
                        f"{one.memory.weights / 1e9:.1f}",
                        f"{one.memory.activations / 1e9:.1f}",
                        f"{one.memory.cache / 1e9:.1f}",
                        f"{one.replica_tokens / 1e6:.2f}",
                        f"{one.usable_low / 1e6:.2f}..{one.usable_high / 1e6:.2f}",
                        f"{one.sessions}",
                        f"{one.first_token_seconds:.2f}",
                        f"{one.inter_token_seconds * 1000:.1f}",
                    )
                    for one in candidates
                ),
            ],
        )  # fmt: skip
    links = plan.transfers[0].seconds
    yield PlanTable(
        f"transfer of {plan.history_tokens + plan.turn_tokens} tokens, scattered blocks",
        [
            ("layout", "descriptors", "B each", *(f"{link} ms" for link in links)),
            *(
                (
                    one.layout,
                    f"{one.descriptors}",
                    f"{one.descriptor_bytes}",
                    *(f"{seconds * 1000:.1f}" for seconds in one.seconds.values()),
                )
                for one in plan.transfers
            ),
        ],
    )  # fmt: skip


def sentences(plan: Plan) -> Iterator[str]:
    """Choices, ratios with their terms, and what was left out."""
    for choice in plan.choices:
        word = (
            "as in the spec"
            if choice.chosen == choice.in_spec
            else f"the spec has {choice.in_spec}"
        )
        yield f"{choice.role}: {choice.chosen} ({word}): {choice.reason}."
    for ratio in plan.ratios:
        yield f"{ratio.what}: {ratio.low:.3f} .. {ratio.high:.3f}; published: {ratio.published}."
        yield from (f"  {term}" for term in ratio.terms)
    for spread, reason in plan.excluded.items():
        yield f"not {spread}: {reason}."
