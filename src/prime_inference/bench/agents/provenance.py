"""Where numbers come from: what was measured, with what, on what, and what was simulated."""

from __future__ import annotations

import os
import platform
import secrets
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import prime_inference

MOCK_NOTICE = "mock engine: no model behind these numbers"


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """`simulated` is empty for a real model on real hardware; else it is said on every figure.

    `nonce` is in every cache-bust marker of the run; `earlier` are the runs that measured the
    points which a resumed run has kept, the oldest first.
    """

    started: str
    nonce: str
    version: str
    commit: str | None
    python: str
    machine: str
    cpus: int
    load_average: tuple[float, float, float]
    base_url: str
    model: str
    served_by: str | None
    workload_notes: tuple[str, ...]
    simulated: tuple[str, ...]
    notes: tuple[str, ...] = ()
    earlier: tuple[Provenance, ...] = ()

    def after(self, earlier: Provenance) -> Provenance:
        """Of a run that goes on with what `earlier` measured: nothing said of that is lost."""
        return msgspec.structs.replace(
            self,
            simulated=tuple(dict.fromkeys((*earlier.simulated, *self.simulated))),
            notes=tuple(dict.fromkeys((*earlier.notes, *self.notes))),
            earlier=(*earlier.earlier, msgspec.structs.replace(earlier, earlier=())),
        )

    def other_server(self, earlier: Provenance) -> str | None:
        """Why this is not the server of `earlier`, as far as servers tell; None if it may be."""
        if (MOCK_NOTICE in self.simulated) != (MOCK_NOTICE in earlier.simulated):
            return "one is the mock engine and the other is not"
        if self.served_by != earlier.served_by:
            return f"it calls itself {self.served_by}, then {earlier.served_by}"
        return None


def provenance(
    *, base_url: str, model: str, served_by: str | None, workload_notes: tuple[str, ...],
    simulated: tuple[str, ...], notes: tuple[str, ...],
) -> Provenance:  # fmt: skip
    """Of a run that starts now on this machine."""
    return Provenance(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        nonce=secrets.token_hex(6),
        version=prime_inference.__version__,
        commit=_commit(),
        python=platform.python_version(),
        machine=f"{platform.machine()} {_processor()}",
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        load_average=os.getloadavg(),
        base_url=base_url,
        model=model,
        served_by=served_by,
        workload_notes=workload_notes,
        simulated=simulated,
        notes=notes,
    )


def _commit() -> str | None:
    """The checkout's commit; None for an installed package."""
    try:
        run = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
            capture_output=True, text=True, check=True, timeout=10,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
