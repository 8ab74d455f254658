"""How a fleet's status, caches and logs look on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prime_inference.cli.terminal import Column, Terminal

if TYPE_CHECKING:
    from prime_inference.fleet.launcher.run import Status

CACHE_NAMES = ("hit_rate", "host_hit_rate", "queue_seconds", "transfer_seconds")


def show_status(terminal: Terminal, status: Status, output: str) -> None:
    """Deployments, their workers and the gateway, as a table or as JSON."""
    if output == "json":
        terminal.json(status)
        return
    columns = [
        Column("deployment"),
        Column("datacenter"),
        Column("model"),
        Column("state"),
        Column("workers"),
        Column("base URL"),
    ]
    rows = [
        [
            one["id"],
            one["datacenter"],
            one["model"],
            one["state"] + (", to be replaced" if one["changed"] else ""),
            " ".join(
                f"{role} {one['workers'].get(role, 0)}/{count}"
                for role, count in one["replicas"].items()
            ),
            one["base_url"],
        ]
        for one in status["deployments"]
    ]
    terminal.table(status["fleet"], columns, rows)
    gateway = status["gateway"]
    if gateway is not None:
        state = "ready" if gateway["ready"] else gateway["state"]
        terminal.line(f"gateway  {gateway['base_url']}  {state}")
        terminal.line(f"API key  {gateway['api_key']}")
    for file, why in status["unwritten"].items():
        terminal.line(f"{file} cannot be written, and is out of date: {why}")
    for name, process in _processes(status):
        if process["state"] in ("waiting", "crash-looping"):
            terminal.line(f"{name}  {process['state']}  {_ends(process)}")


class Progress:
    """What changes while a fleet comes up, as notes; call it with each status."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._states: dict[str, str] = {}
        self._ends: dict[str, Any] = {}

    def __call__(self, status: Status) -> None:
        for one in status["deployments"]:
            if self._states.get(one["id"]) != one["state"]:
                self._terminal.note(f"{one['id']} is {one['state']}")
            self._states[one["id"]] = one["state"]
        for name, process in _processes(status):
            if process["last_exit"] not in (None, self._ends.get(name)):
                self._terminal.note(f"{name} ended: {_ends(process)}")
            self._ends[name] = process["last_exit"]


def _processes(status: Status) -> Iterator[tuple[str, Any]]:
    """Each with its name in the fleet, the gateway first."""
    if status["gateway"] is not None:
        yield status["gateway"]["name"], status["gateway"]
    for one in status["deployments"]:
        yield from ((f"{one['id']}/{process['name']}", process) for process in one["processes"])


def _ends(process: Any) -> str:
    """How often it ended, how it did the last time, and its last line then."""
    ended = process["last_exit"]
    if ended is None:
        return "it has not been started yet"
    words = f": {ended['log'][-1]}" if ended["log"] else ""
    after = f"after {ended['ran_seconds']:.1f} s"
    return f"{process['restarts']} restarts, {ended['cause']} {after}{words}"


def show_caches(terminal: Terminal, status: Status) -> None:
    """What the caches of each deployment did, as a table."""
    columns = [Column("deployment"), *(Column(name, "right") for name in CACHE_NAMES)]
    rows = [
        [one["id"], *(_number(one["caches"][name]) for name in CACHE_NAMES)]
        for one in status["deployments"]
    ]
    terminal.table(status["fleet"], columns, rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def prometheus_text(status: Status) -> str:
    """What the caches did, in Prometheus' text format."""
    import msgspec
    from prometheus_client import CollectorRegistry, generate_latest

    from prime_inference.domain.caches import CacheReport
    from prime_inference.gateway.cache_figures import report_families

    reports = [
        (one["id"], one["datacenter"], msgspec.convert(one["caches"], CacheReport))
        for one in status["deployments"]
    ]

    class Reports:
        def collect(self) -> Iterator[Any]:
            return report_families(reports)

    registry = CollectorRegistry()
    registry.register(Reports())
    return generate_latest(registry).decode()
