"""The controller over real interfaces: a launcher's processes, and Kubernetes' API."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import signal
import sys
import time

import httpx
import pytest
from msgspec.structs import replace

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.controller.controller import Controller
from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.kubernetes_client import (
    Conflict,
    Invalid,
    KubernetesClient,
    TokenFile,
    laid_over,
)
from prime_inference.fleet.controller.kubernetes_datacenter import (
    CONTENT,
    DEPLOYMENT,
    PLANNED,
    KubernetesDatacenter,
    state_of,
)
from prime_inference.fleet.controller.kubernetes_watch import Followed
from prime_inference.fleet.controller.lists import GatewayLists
from prime_inference.fleet.controller.local_datacenter import LocalDatacenter
from prime_inference.fleet.controller.reconcile import Found, Start, digest
from prime_inference.fleet.fleet import DatacenterEntry, read_fleet
from prime_inference.fleet.kubernetes.graph import graph
from prime_inference.fleet.kubernetes.objects import LABEL, MANAGED
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.ready import ReadyDeployment, parse_list
from tests.fleet.api_server import ApiServer, faults
from tests.fleet.datacenters import Everywhere, Lists, everywhere, planned
from tests.fleet.fleets import FLEET, PATIENCE_SECONDS
from tests.fleet.stand_in import break_processes, interpreter

GLM = find_spec("glm-5.3-gb200")
GRAPHS = "dynamographdeployments"


async def stepped(controller, holds):
    """Step until `holds`; the last decision."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        decision = await controller.step()
        if holds():
            return decision
        assert time.monotonic() < end, controller.found
        await asyncio.sleep(0.02)


# -- over the launcher


@pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")
async def test_a_local_deployment_is_replaced_without_a_gap_and_taken_over_by_the_next_controller(
    tmp_path,
):
    folder = StateFolder(tmp_path / "dc")
    python = interpreter(tmp_path)
    pools = {role: {"replicas": 1} for role in ("prefill", "decode")}
    small = find_spec("mocker", changes={"topology": pools})
    lists = Lists()
    datacenter = LocalDatacenter("a", folder, python=python, base=tmp_path)
    await datacenter.open()
    try:
        controller = Controller([datacenter], lists, notice_seconds=0.0)
        controller.want([planned(small)])
        await stepped(controller, lambda: len(lists.last) == 1)
        (first,) = lists.last
        controller.want([planned(small, slots=5)])
        await stepped(controller, lambda: lists.last and lists.last != [first])
        (second,) = lists.last
        assert [] not in lists.all[1:]  # once it served, something was always listed
        await stepped(controller, lambda: [one.name for one in controller.found] == [second])
    finally:
        await datacenter.close(stop=False)
    before = processes.find(str(folder.folder))
    assert {name.partition("/")[0] for name in before} == {second}

    again = LocalDatacenter("a", folder, python=python, base=tmp_path)
    await again.open()
    try:
        taken = Controller([again], lists, notice_seconds=0.0)
        taken.want([planned(small, slots=5)])
        await stepped(taken, lambda: [one.state for one in taken.found] == ["ready"])
        assert processes.find(str(folder.folder)) == before
    finally:
        await again.close(stop=True)
    assert processes.find(str(folder.folder)) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="process groups by /proc")
async def test_what_broke_after_it_was_ready_is_told_to_gateways_and_what_never_starts_to_the_log(
    tmp_path, caplog
):
    python = interpreter(tmp_path)
    pools = {role: {"replicas": 1} for role in ("prefill", "decode")}
    small = find_spec("mocker", changes={"topology": pools})
    lists, folder = Lists(), StateFolder(tmp_path / "dc")
    datacenter = LocalDatacenter("a", folder, python=python, base=tmp_path)
    await datacenter.open()
    try:
        controller = Controller([datacenter], lists, notice_seconds=0.0)
        controller.want([planned(small)])
        await stepped(controller, lambda: len(lists.last) == 1)
        (first,) = lists.last
        changed = planned(small, slots=5)
        second = f"x-{digest(changed)[:6]}"
        break_processes(tmp_path, f"{second}/decode-0")
        controller.want([changed])
        await stepped(
            controller, lambda: "crash-looping" in [one.state for one in controller.found]
        )
        assert lists.last == [first]
        (said,) = [one for one in caplog.messages if one.startswith(f"{second} in a")]
        assert said.endswith(
            "is crash-looping: decode-0 (exit status 1: error: unrecognized arguments: --nope)"
        )

        break_processes(tmp_path, f"{first}/frontend", f"{second}/decode-0")
        os.kill(processes.find(str(folder.folder))[f"{first}/frontend"][0].pid, signal.SIGKILL)
        await stepped(controller, lambda: lists.down == [first])
        assert lists.last == []
        break_processes(tmp_path, f"{second}/decode-0")
        await stepped(controller, lambda: lists.last == [first])
        assert lists.down == []
    finally:
        await datacenter.close(stop=True)


async def test_gateways_everywhere_read_what_is_down(tmp_path, server, client):
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    lists = GatewayLists(read_fleet(file), tmp_path, {"dc-b": client})
    await lists.publish([], ["tiny-a"])
    assert parse_list(lists.file.read_bytes()).down == ["tiny-a"]
    (config,) = [one for (kind, _), one in server.objects.items() if kind == "configmaps"]
    assert parse_list(config["data"]["deployments.json"].encode()).down == ["tiny-a"]
    assert lists.before() == []


# -- over Kubernetes


@pytest.fixture
async def server():
    async with ApiServer() as server:
        yield server


@pytest.fixture
async def client(server):
    client = KubernetesClient(httpx.AsyncClient(base_url=server.url, trust_env=False), "prime")
    yield client
    await client.close()


@pytest.fixture
async def cluster(client):
    datacenter = KubernetesDatacenter("a", client)
    await datacenter.open()
    yield datacenter
    await datacenter.close()


async def operated(server, controller, lists, count=1):
    """Step until as many graphs are there and listed, an operator making each ready."""

    end = time.monotonic() + PATIENCE_SECONDS
    while len(lists.last) != count:
        assert time.monotonic() < end, (server.names("dynamographdeployments"), lists.all)
        await controller.step()
        for name in server.names("dynamographdeployments"):
            graph = server.objects["dynamographdeployments", name]
            if state_of(graph) == "starting":
                await server.operate(name, "successful")
        await asyncio.sleep(0.02)
    return lists.last


async def test_a_graph_is_created_listed_when_ready_and_replaced_beside_the_old_one(
    server, cluster
):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (first,) = await operated(server, controller, lists)
    assert server.names("networkpolicies") == [f"{first}-engines", f"{first}-frontend"]
    assert f"{first}-mooncake" in server.names("services")

    controller.want([planned(GLM, slots=5)])
    await stepped(controller, lambda: len(server.names("dynamographdeployments")) == 2)
    (second,) = set(server.names("dynamographdeployments")) - {first}
    await server.operate(second, "failed")
    for _ in range(5):
        await controller.step()
        await asyncio.sleep(0.02)
    assert lists.last == [first]  # the new one is broken: the old one goes on
    await server.operate(second, "successful")
    await stepped(controller, lambda: server.names("dynamographdeployments") == [second])
    assert lists.last == [second]
    assert [] not in lists.all[1:]
    await stepped(controller, lambda: server.names("services") == [f"{second}-mooncake"])
    assert server.names("networkpolicies") == [f"{second}-engines", f"{second}-frontend"]

    controller.want([planned(GLM, slots=6)])
    await stepped(controller, lambda: len(server.names("dynamographdeployments")) == 2)
    await server.operate(second, "pending")  # a pod of it is started again
    await stepped(controller, lambda: lists.last == [])
    assert second in server.names("dynamographdeployments")  # it may be back before the new one


async def test_a_watch_that_ends_goes_on_and_one_too_old_begins_anew(server, cluster):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    watches = server.watches
    await server.end_watches()
    await server.operate(name, "failed")
    await stepped(controller, lambda: controller.found[0].state == "failing")
    assert server.watches > watches

    await server.end_watches()
    await server.operate(name, "pending")
    server.forget_history()  # whoever watches from before must list anew
    await server.end_watches()
    await stepped(controller, lambda: server.watches > watches + 1)
    assert [one.state for one in controller.found] == ["failing"]  # not starting: it was ready
    await server.operate(name, "successful")
    await stepped(controller, lambda: controller.found[0].state == "ready")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{"type":"ERROR","object":{"code":500}}\n',
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nnonsense\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_a_server_that_ends_every_watch_is_asked_less_and_less(
    server, client, monkeypatch, answer
):
    pauses = []

    async def sleep(seconds, *, real=asyncio.sleep):
        pauses.append(seconds)
        await real(0)

    server.watch_answer = answer
    graphs = Followed(client, "nvidia.com/v1beta1", "DynamoGraphDeployment", "a=b")
    with monkeypatch.context() as patched:
        patched.setattr("prime_inference.fleet.controller.kubernetes_watch.asyncio.sleep", sleep)
        following = asyncio.create_task(graphs.follow())
        end = time.monotonic() + PATIENCE_SECONDS
        while len(pauses) < 7:
            assert time.monotonic() < end
            await asyncio.wait({following}, timeout=0.01)
    following.cancel()
    assert pauses[:7] == [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0]


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"[]",
        b"null",
        b'{"items": null, "metadata": {"resourceVersion": "1"}}',
        b'{"items": [{}], "metadata": {"resourceVersion": "1"}}',
        b'{"items": [{"metadata": {"name": null}}], "metadata": {"resourceVersion": "1"}}',
        b'{"items": [], "metadata": {}}',
    ],
)
async def test_a_list_that_is_none_is_a_datacenter_that_does_not_answer(answer):
    def answered(request):
        return httpx.Response(200, content=answer)

    http = httpx.AsyncClient(base_url="http://k", transport=httpx.MockTransport(answered))
    client = KubernetesClient(http, "prime")
    with pytest.raises(DatacenterUnreachable, match="no list"):
        await client.list("v1", "ConfigMap")
    await client.close()


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"[]",
        b'{"type": "MODIFIED"}',
        b'{"type": "DELETED", "object": {"metadata": {"resourceVersion": "9"}}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "x"}}}',
    ],
)
async def test_a_watch_that_tells_nonsense_makes_nothing_known(server, client, line):
    """It once left a picture that nothing was told to anew, and that was acted upon."""
    graphs = Followed(client, "nvidia.com/v1beta1", "DynamoGraphDeployment", "a=b")
    server.watch_answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + line + b"\n"
    following = asyncio.create_task(graphs.follow())
    end = time.monotonic() + PATIENCE_SECONDS
    while server.watches < 1 or graphs.known:
        assert time.monotonic() < end
        await asyncio.wait({following}, timeout=0.01)
    server.watch_answer = b""
    while not graphs.known:
        assert time.monotonic() < end
        await asyncio.wait({following}, timeout=0.01)
    following.cancel()


async def test_a_cluster_without_the_namespace_is_a_datacenter_that_does_not_answer(server):
    client = KubernetesClient(httpx.AsyncClient(base_url=server.url, trust_env=False), "other")
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    with pytest.raises(DatacenterUnreachable, match="answered 404"):
        await client.put(config)
    with pytest.raises(DatacenterUnreachable, match="answered 404"):
        await client.list("v1", "ConfigMap")
    await client.close()


async def test_a_token_that_is_gone_is_a_datacenter_that_does_not_answer(tmp_path):
    http = httpx.AsyncClient(base_url="http://127.0.0.1:9", auth=TokenFile(tmp_path / "token"))
    client = KubernetesClient(http, "prime")
    with pytest.raises(DatacenterUnreachable, match="token file"):
        await client.list("v1", "ConfigMap")
    await client.close()


async def test_what_others_wrote_into_an_object_stays(server, client):
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "prime", "labels": {"a": "1"}},
        "data": {"list": "1"},
    }
    await client.put(config)
    theirs = copy.deepcopy(server.objects["configmaps", "x"])
    theirs["metadata"] |= {"finalizers": ["f"], "annotations": {"b": "2"}}
    theirs["metadata"]["labels"]["c"] = "3"
    theirs["data"]["more"] = "2"
    await server.change("configmaps", "x", theirs)
    await client.put(config | {"data": {"list": "9"}})
    found = server.objects["configmaps", "x"]
    assert found["metadata"]["finalizers"] == ["f"]
    assert found["metadata"]["annotations"] == {"b": "2"}
    assert found["metadata"]["labels"] == {"a": "1", "c": "3"}
    assert found["data"] == {"list": "9", "more": "2"}


def test_defaults_that_a_server_adds_in_lists_are_no_change():
    wanted = {"ports": [{"port": 1}, {"port": 2}], "types": ["Ingress"]}
    found = {"ports": [{"port": 1, "protocol": "TCP"}, {"port": 2}], "types": ["Ingress"], "x": 1}
    assert laid_over(found, wanted) == found
    assert laid_over({**found, "types": ["Ingress", "Egress"]}, wanted) == found


async def test_a_write_that_meets_another_is_made_on_top_of_it(server, client):
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "x", "namespace": "prime"},
        "data": {"a": "1"},
    }
    await client.apply(config)
    server.conflicts = 1
    with pytest.raises(Conflict):
        await client.apply(config | {"data": {"a": "2"}})
    await client.apply(config | {"data": {"a": "2"}})
    assert server.objects["configmaps", "x"]["data"] == {"a": "2"}
    version = server.version
    await client.apply(config | {"data": {"a": "2"}})
    assert server.version == version  # nothing to write


async def test_an_object_that_the_schema_refuses_is_not_taken(server, client, cluster):
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": "x"},
        "spec": {"backendFramework": "vllm", "components": [{"name": "a", "type": "wroker"}]},
    }
    with pytest.raises(Invalid, match=r"type: unknown.*no container 'main'"):
        await client.apply(graph)
    odd = planned(replace(GLM, image="mine:latest"))
    controller = Controller([cluster], Lists(), notice_seconds=0.0)
    controller.want([odd])
    for _ in range(3):
        await controller.step()
        await asyncio.sleep(0.02)
    assert server.names("dynamographdeployments") == []


async def test_policies_are_there_before_the_graph_and_put_right_whatever_failed(server, cluster):
    """One failed write once left a graph without policies for good."""
    server.failures = [("POST", "networkpolicies"), ("POST", "configmaps")]
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    policies = [f"{name}-engines", f"{name}-frontend"]
    assert server.names("networkpolicies") == policies
    assert server.names("configmaps") == [f"{name}-mooncake"]
    created = [what for method, what in server.calls if method == "POST"]
    assert created[-1] == "dynamographdeployments"
    assert created.count("dynamographdeployments") == 1

    for policy in policies:
        await server.remove("networkpolicies", policy)
    await stepped(controller, lambda: server.names("networkpolicies") == policies)
    opened = copy.deepcopy(server.objects["networkpolicies", policies[0]])
    opened["spec"]["ingress"].append({"from": [{"podSelector": {}}]})
    await server.change("networkpolicies", policies[0], opened)
    await stepped(
        controller,
        lambda: len(server.objects["networkpolicies", policies[0]]["spec"]["ingress"]) == 1,
    )
    for _ in range(3):  # the watch has told all of it
        await asyncio.sleep(0.05)
        await controller.step()
    calls = len(server.calls)
    await controller.step()
    assert len(server.calls) == calls  # to find nothing wrong costs nothing


async def test_policies_go_after_the_pods_and_what_is_left_is_cleared_in_the_end(server, cluster):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    policies = server.names("networkpolicies")
    for pod, component in (("worker", "decode"), ("master", "mooncake-master")):
        labels = {
            "inference.prime/deployment": name,
            "app.kubernetes.io/component": component,
        }
        await server.add("pods", {"metadata": {"name": pod, "labels": labels}})
    server.slow_to_go = True
    controller.want([])
    await stepped(controller, lambda: [one.state for one in controller.found] == ["draining"])

    async def some_steps():
        for _ in range(5):
            await controller.step()
            await asyncio.sleep(0.02)

    await some_steps()
    assert server.names("networkpolicies") == policies
    await server.let_go(name)
    await some_steps()
    assert server.names("networkpolicies") == policies  # a worker still writes its answers
    assert server.names("deployments") == [f"{name}-mooncake"]
    await server.remove("pods", "worker")
    server.failures = [("DELETE", kind) for kind in ("deployments", "services", "networkpolicies")]
    await stepped(controller, lambda: server.names("deployments") == [])
    assert server.names("networkpolicies") == policies
    await server.remove("pods", "master")
    await stepped(controller, lambda: controller.found == [])
    assert server.failures == []
    assert server.objects == {}


async def test_what_nobody_wants_any_more_is_cleared_by_the_next_controller(server, client):
    """The last one was killed between its first writes."""
    first = KubernetesDatacenter("a", client)
    server.failures = [("POST", "dynamographdeployments")]
    start = Start("x-1", "1", planned(GLM))
    with pytest.raises(DatacenterUnreachable):
        await first.start(start)
    assert server.names("networkpolicies") == ["x-1-engines", "x-1-frontend"]
    second = KubernetesDatacenter("a", client)
    await second.open()
    controller = Controller([second], Lists(), notice_seconds=0.0)
    controller.want([planned(GLM, "y")])
    name = f"y-{digest(planned(GLM, 'y'))[:6]}"
    await stepped(controller, lambda: {one.name for one in controller.found} == {name})
    assert server.names("networkpolicies") == [f"{name}-engines", f"{name}-frontend"]
    await second.close()


async def test_a_graph_that_runs_is_left_as_its_operator_and_scaler_have_it(server, cluster):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    theirs = copy.deepcopy(server.objects["dynamographdeployments", name])
    theirs["metadata"]["finalizers"] = ["nvidia.com/finalizer"]
    theirs["spec"]["components"][1]["replicas"] = 9
    await server.change("dynamographdeployments", name, theirs)
    await controller.step()
    lagging = KubernetesDatacenter("a", cluster._client)  # it has seen nothing yet
    await lagging.start(Start(name, digest(planned(GLM)), planned(GLM)))
    found = server.objects["dynamographdeployments", name]
    assert found["metadata"]["finalizers"] == ["nvidia.com/finalizer"]
    assert found["spec"]["components"][1]["replicas"] == 9


async def test_another_fleets_graph_of_the_same_name_is_not_taken(server, client, cluster):
    start = Start("x-1", "1", planned(GLM))
    await cluster.start(start)
    before = copy.deepcopy(server.objects)
    with pytest.raises(
        DatacenterUnreachable, match="x-1-engines is refused: x-1-engines belongs to 'prime'"
    ):
        await KubernetesDatacenter("a", client, fleet="other").start(start)
    assert server.objects == before


async def test_an_instance_is_listed_as_what_it_was_started_as(server, cluster, client):
    """By the next controller too, whose file names another model."""
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    told = []

    async def publish(ready, down):
        told.append(ready)

    model = replace(GLM.model, id="other/model", revision="r9", context_tokens=4096)
    following = KubernetesDatacenter("a", client)
    await following.open()
    second = Controller([following], publish, notice_seconds=0.0)
    second.want([planned(replace(GLM, model=model))])
    await stepped(second, lambda: told and told[-1])
    (one,) = told[-1]
    assert (one.id, one.model, one.revision, one.context_tokens) == (
        name,
        GLM.model.id,
        GLM.model.revision,
        GLM.model.context_tokens,
    )
    await following.close()


async def test_what_cannot_be_read_of_an_instance_is_taken_from_the_list_before():
    old = Found("x-old", "x", "old", "a", GLM.model.id, "ready", "http://new/v1")
    before = ReadyDeployment.of(planned(GLM), "http://old/v1", "x-old")
    told = []

    async def publish(ready, down):
        told.append(ready)

    datacenter = Everywhere("a")
    datacenter.there = {one.name: one for one in (old, dataclasses.replace(old, name="y-old"))}
    controller = Controller([datacenter], publish, before=[before], notice_seconds=0.0)
    controller.want([planned(GLM, slots=7)])
    await controller.step()
    assert told == [[replace(before, base_url="http://new/v1")]]


async def test_one_bad_deployment_or_datacenter_holds_up_no_other(caplog):
    class Broken(Everywhere):
        async def instances(self):
            raise RuntimeError("no such thing")

    class Picky(Everywhere):
        async def start(self, start):
            if start.planned.id == "bad":
                raise ValueError("not this one")
            await super().start(start)

    lists = Lists()
    controller = Controller([Broken("a"), Picky("b")], lists, notice_seconds=0.0)
    controller.want([planned(GLM, "bad", "b"), planned(GLM, "good", "b"), planned(GLM, "x", "a")])
    for _ in range(3):
        await controller.step()
    assert [name.partition("-")[0] for name in lists.last] == ["good"]
    said = [one for one in caplog.messages if "not this one" in one or "no such thing" in one]
    assert len(said) == 2  # once each, not at every step


async def test_a_datacenter_that_does_not_answer_keeps_what_is_listed(server, cluster):
    class Silent:
        id = "b"

        def __init__(self):
            self.answers = True
            self.calls = []

        async def instances(self):
            if not self.answers:
                raise DatacenterUnreachable("no route")
            return self.calls

        async def start(self, start):
            self.calls.append(everywhere("b", start))

        def lacking(self, kept):
            return ()

        async def drain(self, found):
            raise AssertionError("nothing is drained where nobody answers")

    other, lists = Silent(), Lists()
    controller = Controller([cluster, other], lists, notice_seconds=0.0)
    controller.want([planned(GLM), planned(GLM, "y", "b")])
    both = await operated(server, controller, lists, count=2)
    other.answers = False
    controller.want([planned(GLM), planned(GLM, "y", "b", slots=9)])
    for _ in range(3):
        await controller.step()
    assert lists.last == both


async def test_nothing_is_drained_that_a_gateway_may_still_know(server, cluster):
    class Deaf(Lists):
        hears = True

        async def __call__(self, ready, down):
            if not self.hears:
                raise DatacenterUnreachable("no route to the gateways")
            await super().__call__(ready, down)

    lists = Deaf()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (first,) = await operated(server, controller, lists)
    lists.hears = False
    controller.want([planned(GLM, slots=5)])
    await stepped(controller, lambda: len(server.names("dynamographdeployments")) == 2)
    (second,) = set(server.names("dynamographdeployments")) - {first}
    await server.operate(second, "successful")
    await stepped(controller, lambda: [one.state for one in controller.found].count("ready") == 2)
    for _ in range(3):
        await controller.step()
    assert first in server.names("dynamographdeployments")
    lists.hears = True
    await stepped(controller, lambda: server.names("dynamographdeployments") == [second])
    assert lists.last == [second]


async def test_nothing_of_another_fleet_is_deleted_whatever_names_it(server, cluster):
    """A leftover of ours once had another's running graph deleted."""
    labels = {MANAGED: "f2", LABEL: "victim"}
    theirs = graph(planned(GLM, "victim"), "prime")
    theirs["metadata"]["labels"] = labels
    await server.add(GRAPHS, theirs)
    ours = {"metadata": {"name": "left", "labels": {MANAGED: "prime", LABEL: "victim"}}}
    await server.add("configmaps", ours)
    controller = Controller([cluster], Lists(), notice_seconds=0.0)
    await stepped(controller, lambda: server.names("configmaps") == [])
    assert server.names(GRAPHS) == ["victim"]
    byhand = copy.deepcopy(theirs)
    byhand["metadata"]["labels"] = {LABEL: "victim"}  # as `render kubernetes` writes it
    await server.change(GRAPHS, "victim", byhand)
    await server.add("configmaps", ours)
    await stepped(controller, lambda: server.names("configmaps") == [])
    assert server.names(GRAPHS) == ["victim"]


async def test_an_object_that_has_the_name_since_is_not_deleted(server, client):
    await server.add("configmaps", {"metadata": {"name": "x", "labels": {}}})
    with pytest.raises(DatacenterUnreachable, match="x is another by now"):
        await client.delete("v1", "ConfigMap", "x", uid="of another")
    assert server.names("configmaps") == ["x"]


@pytest.mark.parametrize(
    "taken",
    [{MANAGED}, {DEPLOYMENT}, {CONTENT}, {DEPLOYMENT, CONTENT}, {MANAGED, DEPLOYMENT}],
)
async def test_labels_of_ours_that_are_taken_away_are_put_right_and_cost_no_graph(
    server, cluster, taken
):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    before = server.objects[GRAPHS, name]["metadata"]["labels"]
    bare = copy.deepcopy(server.objects[GRAPHS, name])
    bare["metadata"]["labels"] = {key: before[key] for key in before.keys() - taken}
    await server.change(GRAPHS, name, bare)
    await stepped(
        controller,
        lambda: (
            server.objects[GRAPHS, name]["metadata"]["labels"] == before and lists.last == [name]
        ),
    )
    assert ("DELETE", f"{GRAPHS}/{name}") not in server.calls
    assert ("POST", GRAPHS) not in server.calls[server.calls.index(("POST", GRAPHS)) + 1 :]


async def test_a_graph_that_lost_its_label_is_drained_all_the_same(server, cluster):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM)])
    (name,) = await operated(server, controller, lists)
    bare = copy.deepcopy(server.objects[GRAPHS, name])
    del bare["metadata"]["labels"][MANAGED]
    controller.want([])
    await server.change(GRAPHS, name, bare)
    await stepped(controller, lambda: server.objects == {})


@pytest.mark.parametrize(
    "planned_as", ['{"x":' + "[" * 100_000, "{", "null", "[]", '"\ud800', "\ud800", None]
)
async def test_an_annotation_that_is_none_costs_only_its_instance(server, cluster, planned_as):
    """One of them once silenced the whole datacenter. It is put right."""
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM), planned(GLM, "y")])
    names = await operated(server, controller, lists, count=2)
    right = server.objects[GRAPHS, names[0]]["metadata"]["annotations"]
    odd = copy.deepcopy(server.objects[GRAPHS, names[0]])
    odd["metadata"]["annotations"] = None if planned_as is None else right | {PLANNED: planned_as}
    await server.change(GRAPHS, names[0], odd)
    await stepped(
        controller,
        lambda: (
            server.objects[GRAPHS, names[0]]["metadata"]["annotations"] == right
            and lists.last == names
            and None not in [one.planned for one in controller.found]
        ),
    )
    assert ("DELETE", f"{GRAPHS}/{names[0]}") not in server.calls


async def test_a_server_that_hangs_holds_up_no_other_datacenter(server, cluster, monkeypatch):
    """It once held up every step, and with it every list, for a minute."""
    monkeypatch.setattr("prime_inference.fleet.controller.controller.HELD_UP_SECONDS", 0.05)
    server.hangs = {("POST", "networkpolicies")}
    lists, other = Lists(), Everywhere("b")
    controller = Controller([cluster, other], lists, notice_seconds=0.0)
    controller.want([planned(GLM), planned(GLM, "y", "b")])
    await stepped(controller, lambda: ("POST", "networkpolicies") in server.calls)
    calls, began = len(server.calls), time.monotonic()
    for _ in range(5):
        await controller.step()
    assert time.monotonic() - began < 5.0  # a single call is given up after 10 s
    assert len(server.calls) == calls  # nothing is begun twice
    assert [name.partition("-")[0] for name in lists.last] == ["y"]
    await controller.close()


async def test_gateways_that_cannot_be_told_hold_up_no_list_and_are_told_the_newest(
    tmp_path, server, client, monkeypatch
):
    monkeypatch.setattr("prime_inference.fleet.controller.lists.TELL_SECONDS", 0.05)
    file = tmp_path / "fleet.toml"
    file.write_text(FLEET)
    lists = GatewayLists(read_fleet(file), tmp_path, {"dc-b": client})
    server.hangs = {("GET", "configmaps")}
    with pytest.raises(DatacenterUnreachable, match="dc-b: no answer yet"):
        await lists.publish([], ["x"])
    assert parse_list(lists.file.read_bytes()).down == ["x"]
    await lists.close()

    lists = GatewayLists(read_fleet(file), tmp_path, {"dc-b": client}, [DatacenterEntry("dc-b")])
    await lists.publish([], ["y"])  # nothing waits for a cluster that leaves
    assert parse_list(lists.file.read_bytes()).down == ["y"]
    await lists.close()


@pytest.mark.parametrize(
    "status",
    [
        None,
        "x",
        {"conditions": None},
        {"conditions": "x"},
        {"conditions": [None, "x", {}]},
        {"conditions": [{"type": "Ready", "status": "False", "message": None}]},
        {"state": None},
    ],
)
async def test_a_status_that_is_none_is_one_of_a_graph_that_is_not_ready(server, cluster, status):
    lists = Lists()
    controller = Controller([cluster], lists, notice_seconds=0.0)
    controller.want([planned(GLM), planned(GLM, "y")])
    names = await operated(server, controller, lists, count=2)
    odd = copy.deepcopy(server.objects[GRAPHS, names[0]])
    odd["status"] = status
    await server.change(GRAPHS, names[0], odd)
    await stepped(controller, lambda: lists.last == names[1:])


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "starting"),
        ({"state": "deploying", "conditions": [{"type": "Ready", "status": "False"}]}, "starting"),
        ({"state": "failed"}, "failing"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "ready"),
    ],
)
def test_the_state_of_a_graph(status, state):
    assert state_of({"metadata": {}, "status": status}) == state
    gone = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": status}
    assert state_of(gone) == "draining"


@pytest.mark.parametrize("name", ["glm-5.3-gb200", "glm-5.3-h200", "qwen3-0.6b"])
def test_every_rendered_graph_keeps_to_the_schema(name):
    rendered = graph(planned(find_spec(name)), "prime")
    assert list(faults(rendered)) == []
    rendered["spec"]["components"][0]["replcias"] = 1
    assert list(faults(rendered)) == ["spec.components[frontend].replcias: unknown field"]
