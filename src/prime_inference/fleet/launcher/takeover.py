"""What becomes of a deployment when a launcher starts. Pure.

what the state knows      what the file says      becomes
─────────────────────     ───────────────────     ────────────────────────────────────────
nothing                   a deployment            started
wanted                    the same                kept: what lives is taken over, what is
                                                  missing is started, what is too many ends
wanted, nothing lives     another content         started, with the new content
wanted, something lives   another content         replaced: it serves and is announced as
                                                  what it was started as until its turn, then
                                                  it is drained and started anew
drained, something lives  anything                drained on, then as below
drained, nothing lives    a deployment            kept drained
anything that lives       nothing                 drained, then forgotten
nothing that lives        nothing                 forgotten
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.launcher.state import DeploymentRecord
from prime_inference.fleet.spec import LimitSpec, SloSpec, Spec, TopologySpec

Fate = Literal["start", "keep", "replace", "drain", "forget"]


def fate(
    record: DeploymentRecord | None, planned: PlannedDeployment | None, base: str, *, lives: bool
) -> Fate:
    """`record`: what the state knows; `planned`: what the file wants, its sources relative to
    `base`; `lives`: whether a process of it runs."""
    if record is None:
        return "forget" if planned is None else "start"
    if planned is None or not record.running:
        return "drain" if lives else "forget" if planned is None else "keep"
    if not lives:
        return "start"
    return "keep" if same_processes(record, planned, base) else "replace"


def same_processes(record: DeploymentRecord, planned: PlannedDeployment, base: str) -> bool:
    """Whether the processes that were started are those that `planned` would start.

    Replicas come and go, and the rest of what is left out only gateways and plans are told.
    """
    moved = planned.spec.model.source.startswith(".") and record.base != base
    return not moved and _started_as(record.planned.spec) == _started_as(planned.spec)


def _started_as(spec: Spec) -> Spec:
    pools = (spec.topology.workers, spec.topology.prefill, spec.topology.decode)
    workers, prefill, decode = (one and replace(one, replicas=1) for one in pools)
    return replace(
        spec,
        name="",
        image="",
        topology=TopologySpec(workers=workers, prefill=prefill, decode=decode),
        limits=LimitSpec(slots=1),
        slo=SloSpec(),
    )
