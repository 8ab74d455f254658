"""A thousand deployments, ten thousand workers, simulated: what controller and gateway pay.

    python benchmarks/fleet_scale.py

Datacenters are objects in memory; reconciling, writing the list, reading it in a gateway and
configuring the gateway's guard are the product's own code. Each size is measured in a process
of its own, the median of five.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from msgspec.structs import replace

from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import Controller
from prime_inference.fleet.controller.reconcile import Found, Start, digest, reconcile
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.kubernetes.documents import deployment_documents
from prime_inference.fleet.kubernetes.policies import Place
from prime_inference.fleet.ready import ReadyDeployment, fault, write_ready
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.settings import Settings

SIZES = (250, 500, 1000, 2000, 4000, 8000)
DATACENTERS = 10
WORKERS = 10  # of each deployment
MODELS = 50
REPEATS = 5


class Simulated:
    """A datacenter in which everything is ready at once."""

    def __init__(self, name: str) -> None:
        self.id = name
        self.there: dict[str, Found] = {}

    async def instances(self) -> list[Found]:
        return list(self.there.values())

    async def start(self, start: Start) -> None:
        spec = start.planned.spec
        url = f"http://{start.name}.{self.id}:8000/v1"
        self.there[start.name] = Found(
            start.name, start.planned.id, start.content, self.id, spec.model.id, "ready", url,
            planned=start.planned,
        )  # fmt: skip

    def lacking(self, kept: Sequence[Start]) -> Sequence[Start]:
        return ()

    async def drain(self, found: Found) -> None:
        del self.there[found.name]


def fleet(count: int, version: int = 1) -> list[PlannedDeployment]:
    """`count` deployments of `WORKERS` workers, over models and datacenters."""
    base = find_spec("mocker")
    prefill, decode = base.topology.prefill, base.topology.decode
    assert prefill is not None
    assert decode is not None
    topology = replace(
        base.topology,
        prefill=replace(prefill, replicas=WORKERS // 2),
        decode=replace(decode, replicas=WORKERS // 2),
    )
    return [
        PlannedDeployment(
            f"d{at}",
            f"dc{at % DATACENTERS}",
            replace(
                base,
                topology=topology,
                model=replace(base.model, id=f"author/model-{at % MODELS}"),
                limits=replace(base.limits, slots=63 + version),
            ),
        )
        for at in range(count)
    ]


def median_ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return statistics.median(took) * 1000


def measure(count: int) -> dict[str, float]:
    wanted = [(one, digest(one)) for one in fleet(count)]
    lists: list[list[ReadyDeployment]] = []
    datacenters = [Simulated(f"dc{at}") for at in range(DATACENTERS)]

    async def publish(ready: list[ReadyDeployment], down: list[str]) -> None:
        lists.append(ready)

    controller = Controller(datacenters, publish, notice_seconds=0.0)
    result: dict[str, float] = {"deployments": count, "workers": count * WORKERS}
    result["want_ms"] = median_ms(lambda: controller.want(fleet(count)))
    asyncio.run(_until_steady(controller))
    found = controller.found
    assert len(found) == len(lists[-1]) == count
    surge = {one.id: 1 for one in datacenters}
    result["reconcile_ms"] = median_ms(lambda: reconcile(wanted, found, surge=surge))
    result["step_ms"] = median_ms(lambda: asyncio.run(_step(controller)))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "deployments.json"
        result["write_list_ms"] = median_ms(lambda: write_ready(file, lists[-1]))
        result["list_kb"] = file.stat().st_size / 1024
        result["gateway_read_ms"] = median_ms(lambda: _read_anew(file))
        catalog = _catalog(file)
        catalog.read()
        guard = _guard()
        began = time.perf_counter()
        _configure(guard, catalog)
        result["guard_first_ms"] = (time.perf_counter() - began) * 1000
        result["guard_again_ms"] = median_ms(lambda: _configure(guard, catalog))
    one = PlannedDeployment("one", "dc0", find_spec("glm-5.3-gb200"))
    result["render_one_ms"] = median_ms(lambda: deployment_documents(one, Place("prime")))
    result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return result


async def _step(controller: Controller) -> None:
    """Without the decision: asyncio.run makes a text of what a task gives back."""
    await controller.step()


async def _until_steady(controller: Controller) -> None:
    while (decision := await controller.step()).starts or decision.drains:
        pass


def _catalog(file: Path) -> ReadyFleet:
    return ReadyFleet(file, frozenset({"tools"}), time.time)


def _read_anew(file: Path) -> None:
    fault.cache_clear()  # as in a gateway that has just started
    _catalog(file).read()


def _guard() -> Guard:
    return Guard("bench", Settings(), time.monotonic, Random(1))


def _configure(guard: Guard, catalog: ReadyFleet) -> None:
    guard.configure(catalog.deployments)


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    rows = []
    for size in SIZES:
        done = subprocess.run(
            [sys.executable, __file__, str(size)], check=True, capture_output=True, text=True
        )
        rows.append(json.loads(done.stdout))
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|" + "---:|" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{row[name]:,.1f}".removesuffix(".0") for name in names) + " |")


if __name__ == "__main__":
    main()
