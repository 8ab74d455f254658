"""Everything that runs in one datacenter's cluster, in the order in which it is to be applied."""

from __future__ import annotations

from collections.abc import Iterator

from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import Fleet, PlannedDeployment
from prime_inference.fleet.kubernetes.gateway import gateway
from prime_inference.fleet.kubernetes.graph import graph
from prime_inference.fleet.kubernetes.host_tier import host_tier
from prime_inference.fleet.kubernetes.objects import Document
from prime_inference.fleet.kubernetes.policies import Place, policies
from prime_inference.fleet.spec import Spec


def documents(fleet: Fleet, datacenter: str, namespace: str = "default") -> list[Document]:
    """Everything that one datacenter's cluster runs. Raises FleetRefused."""
    here = [one for one in fleet.deployments if one.datacenter == datacenter]
    if not here:
        raise FleetRefused(f"{fleet.name} has no deployment in {datacenter!r}.")
    cluster = next(one.kubernetes for one in fleet.datacenters if one.id == datacenter)
    place = Place(fleet.name, namespace, cluster.monitoring if cluster is not None else "")
    result: list[Document] = []
    for one in here:
        result += deployment_documents(one, place)
    if fleet.gateway.enabled:
        result += gateway(fleet, datacenter, namespace)
    return result


def deployment_documents(deployment: PlannedDeployment, place: Place) -> list[Document]:
    """Who may talk to the graph, its second cache tier, and last the graph: no engine is there
    before its policies are. Raises FleetRefused."""
    _require_for_clusters(deployment)
    return [
        *policies(deployment, place),
        *host_tier(deployment, place.namespace),
        graph(deployment, place.namespace),
    ]


def _require_for_clusters(deployment: PlannedDeployment) -> None:
    """Raises FleetRefused."""
    for reason in _only_here(deployment.spec):
        raise FleetRefused(f"{deployment.id}: {reason}")


def _only_here(spec: Spec) -> Iterator[str]:
    """Why a spec is for this machine only."""
    if spec.engine == "llama.cpp":
        yield "the local engine runs on one machine only."
    elif spec.engine != "vllm":
        yield f"the engine {spec.engine!r} plays one; the operator's graphs are of vLLM."
    source = spec.model.source
    if source == "bytes" or source.startswith("."):
        yield (
            f"model.source {source!r} is a folder of this machine; in a cluster it is a repository,"
            " or a path in the image."
        )
