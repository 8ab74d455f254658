"""How a fleet's status, caches and logs look on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
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
            one["state"],
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


def show_caches(terminal: Terminal, status: Status) -> None:
    """What the caches of each deployment did, as a table."""
    columns = [Column("deployment"), *(Column(name, "right") for name in CACHE_NAMES)]
    rows = [
        [one["id"], *(_number(one["caches"][name]) for name in CACHE_NAMES)]
        for one in status["deployments"]
    ]
    terminal.table(status["fleet"], columns, rows)


def last_lines(file: Path, count: int) -> list[str]:
    """The end of a log. Raises OSError."""
    with file.open("rb") as content:
        content.seek(max(0, file.stat().st_size - count * 1000))  # longer lines are rare
        return content.read().decode(errors="replace").splitlines()[-count:]


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
