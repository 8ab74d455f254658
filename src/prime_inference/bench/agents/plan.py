"""What a run measures: its points, and what holds for all of them."""

from __future__ import annotations

import math
import shlex
import shutil
from typing import Any

import msgspec

from prime_inference.bench.agents.generate import LogNormal
from prime_inference.bench.agents.scale import Scale


class Fault(msgspec.Struct, frozen=True):
    """A command to run `at` seconds into profiling, such as one that kills a worker."""

    at: float
    command: str

    @classmethod
    def parse(cls, text: str) -> Fault:
        """`SECONDS:COMMAND`. Raises ValueError."""
        at, colon, command = text.partition(":")
        if not colon or not shlex.split(command):
            raise ValueError(f"a fault is SECONDS:COMMAND, not {text!r}")
        fault = cls(float(at), command.strip())
        program = fault.arguments[0]
        if shutil.which(program) is None:
            raise ValueError(f"a fault's command is not there, or not to be run: {program}")
        return fault

    def __post_init__(self) -> None:
        if not 0 <= self.at < math.inf:
            raise ValueError(f"a fault's time is not below 0 and has an end, not {self.at}")

    @property
    def arguments(self) -> list[str]:
        return shlex.split(self.command)


class Point(msgspec.Struct, frozen=True, order=True):
    """One measurement. `sessions` is the closed loop's lanes; 0 where the loop is open."""

    sessions: int
    cold_rate: float
    seed: int


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules of every point. Seconds, tokens, requests a second. Defaults are AgentX's
    `agentx` scenario where it has them."""

    seconds: float = 3600.0
    start_window: tuple[float, float] = (0.25, 0.75)
    warmup_requests: int = 10
    idle_cap: float = 300.0
    system_idle_cap: float | None = 10.0  # while nothing at all is in flight; None: no cap
    grace: float = 60.0  # for answers in flight at the end; a turn of 444 tokens at 10 tok/s
    timeout: float = 600.0  # of one request: a cold prompt of a million tokens in a long queue
    session_rate: float | None = None  # sessions started a second: an open loop
    cold_burst: int = 1
    cold_input: LogNormal = LogNormal(142_016, 0.8, 1_000, 900_000)  # the sessions' median, cold
    cold_output: LogNormal = LogNormal(444, 1.0, 8, 16_000)
    cancel_share: float = 0.0
    failed_limit: float = 0.10  # share of requests; AgentX's gate
    lag_bound: float = 0.010  # seconds at p99: below what a person or a percentile notices
    faults: tuple[Fault, ...] = ()
    scale: Scale = Scale()
    ignore_eos: bool = True
    extra: dict[str, Any] = {}

    def __post_init__(self) -> None:
        low, high = self.start_window
        if not 0 <= low <= high <= 1:
            raise ValueError(f"the start window is two shares in order, not {low}, {high}")
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"a point lasts longer than nothing and has an end: {self.seconds} s")
        if self.session_rate is not None and not 0 < self.session_rate < math.inf:
            raise ValueError(f"a rate of sessions is above 0, not {self.session_rate}")
        for name in ("idle_cap", "system_idle_cap", "grace", "timeout", "lag_bound"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} is not below 0 and has an end, not {value}")
        for fault in self.faults:
            if fault.at >= self.seconds:
                raise ValueError(
                    f"the fault at {fault.at:g} s would never come: a point ends after"
                    f" {self.seconds:g} s"
                )
        if not 0 <= self.cancel_share <= 1:
            raise ValueError(f"the cancel share is between 0 and 1, not {self.cancel_share}")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what is sent, and where. `tools_sha256` is of the definitions;
    None without tools."""

    workload: str
    form: str = ""
    base_url: str = ""
    tools_sha256: str | None = None
    workload_sha256: str
    model: str
    points: tuple[Point, ...]
    options: Options
