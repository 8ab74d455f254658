"""One fleet, three ways. Dynamo's own parsers are asked in tests/dynamo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prime_inference.cli.main import app
from prime_inference.fleet.arguments import WorkerPorts, frontend_arguments, worker_arguments
from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.errors import FleetRefused, SpecImpossible, SpecMalformed
from prime_inference.fleet.fleet import Fleet, PlannedDeployment, read_fleet
from prime_inference.fleet.hardware import GPUS
from prime_inference.fleet.kubernetes.documents import documents
from prime_inference.fleet.kubernetes.graph import graph
from prime_inference.fleet.local import processes
from prime_inference.fleet.ready import parse_ready
from prime_inference.fleet.render import rendered
from tests.fleet.api_server import object_faults

GLM_FLEET = """
name = "prod"
[gateway]
secret = "prod-shared"
[[datacenter]]
id = "east"
[[datacenter]]
id = "west"
frontend_url = "http://{deployment}.west.example:8000/v1"
[[deployment]]
id = "glm-east"
datacenter = "east"
spec = "glm-5.3-gb200"
[[deployment]]
id = "glm-west"
datacenter = "west"
spec = "glm-5.3-h200"
"""


def written(folder, text) -> Fleet:
    file = folder / "fleet.toml"
    file.write_text(text)
    return read_fleet(file)


@pytest.fixture
def fleet(tmp_path) -> Fleet:
    return written(tmp_path, GLM_FLEET)


def of_kind(items, kind):
    return [item for item in items if item["kind"] == kind]


def value_of(arguments, flag):
    return arguments[arguments.index(flag) + 1]


def vllm_arguments(name, role):
    spec = find_spec(name)
    pool = spec.topology.pools[role]
    return worker_arguments(spec, role, pool, source="m", ports=WorkerPorts())


# -- arguments


def test_a_prefill_worker_of_the_big_model():
    arguments = vllm_arguments("glm-5.3-gb200", "prefill")
    assert value_of(arguments, "--disaggregation-mode") == "prefill"
    assert value_of(arguments, "--max-num-batched-tokens") == "4096"
    assert value_of(arguments, "--kv-cache-dtype") == "nvfp4_ds_mla"
    assert value_of(arguments, "--data-parallel-size") == "8"
    assert value_of(arguments, "--tensor-parallel-size") == "1"
    assert "--enable-expert-parallel" in arguments
    transfer = json.loads(value_of(arguments, "--kv-transfer-config"))
    connectors = transfer["kv_connector_extra_config"]["connectors"]
    names = [one["kv_connector"] for one in connectors]
    assert names == ["NixlConnector", "MooncakeStoreConnector"]
    events = json.loads(value_of(arguments, "--kv-events-config"))
    assert events["endpoint"].startswith("tcp://*:")
    assert json.loads(value_of(arguments, "--dyn-structural-tag"))["scope"] == "always"


def test_decode_workers_tell_no_events_and_aggregated_ones_transfer_nothing():
    assert "--kv-events-config" not in vllm_arguments("glm-5.3-gb200", "decode")
    small = vllm_arguments("qwen3-0.6b", "aggregated")
    assert "--kv-transfer-config" not in small
    assert "--disaggregation-mode" not in small
    assert "--enable-expert-parallel" not in small


def test_several_routers_tell_each_other_what_they_sent_where():
    spec = find_spec("qwen3-0.6b")
    one = frontend_arguments(spec, host="h", port=1)
    several = frontend_arguments(spec, host="h", port=1, frontends=2)
    assert set(several) - set(one) == {"--router-replica-sync"}
    blind = find_spec("qwen3-0.6b", changes={"router": {"mode": "random"}})
    assert "--router-replica-sync" not in frontend_arguments(blind, host="h", port=1, frontends=2)


def test_processes_of_a_local_deployment_have_ports_of_their_own():
    ports = iter(range(20_000, 30_000))
    found = processes(
        find_spec("mocker"), source="m", discovery=Path("d"), free_port=lambda: next(ports)
    )
    assert [one.name for one in found] == [
        "frontend",
        "prefill-0",
        "prefill-1",
        "decode-0",
        "decode-1",
    ]
    assert len({one.port for one in found}) == 5
    assert all(one.environment["DYN_DISCOVERY_BACKEND"] == "file" for one in found)
    assert "--bootstrap-ports" in found[1].argv
    assert "--bootstrap-ports" not in found[3].argv


# -- kubernetes


def test_a_graph_has_a_frontend_and_both_pools(fleet):
    (graph,) = of_kind(documents(fleet, "east"), "DynamoGraphDeployment")
    assert graph["apiVersion"] == "nvidia.com/v1beta1"
    components = {one["name"]: one for one in graph["spec"]["components"]}
    assert components.keys() == {"frontend", "prefill", "decode"}
    prefill = components["prefill"]
    assert prefill["type"] == "prefill"
    assert prefill["replicas"] == 4
    assert prefill["multinode"] == {"nodeCount": 2}  # 8 GPUs in trays of 4
    (main,) = prefill["podTemplate"]["spec"]["containers"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "4"
    names = {entry["name"] for entry in main["env"]}
    assert {"VLLM_KV_CACHE_LAYOUT", "MOONCAKE_CONFIG_PATH", "POD_IP"} <= names


def test_an_aggregated_graph_has_workers_on_one_node(fleet):
    (graph,) = of_kind(documents(fleet, "west"), "DynamoGraphDeployment")
    worker = graph["spec"]["components"][1]
    assert worker["type"] == "worker"
    assert "multinode" not in worker
    (main,) = worker["podTemplate"]["spec"]["containers"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_gateways_and_the_controller_reach_frontends_and_only_the_graph_reaches_workers(fleet):
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind(documents(fleet, "east"), "NetworkPolicy")
    }
    assert policies.keys() == {"glm-east-engines", "glm-east-frontend"}
    engines = policies["glm-east-engines"]
    mine = {"matchLabels": {"inference.prime/deployment": "glm-east"}}
    assert engines["podSelector"] == mine
    assert engines["ingress"] == [{"from": [{"podSelector": mine}]}]
    frontend = policies["glm-east-frontend"]
    (rule,) = frontend["ingress"]
    peer, controller = rule["from"]
    items = documents(fleet, "east")
    (gateway,) = [
        one for one in of_kind(items, "Deployment") if one["metadata"]["name"] == "prod-gateway"
    ]
    assert peer["podSelector"]["matchLabels"] == gateway["spec"]["template"]["metadata"]["labels"]
    labels = controller["podSelector"]["matchLabels"]
    assert labels["app.kubernetes.io/component"] == "controller"
    assert labels["inference.prime/fleet"] == "prod"
    assert [port["port"] for port in rule["ports"]] == [8000]


def test_pods_carry_the_labels_that_policies_select(fleet):
    (graph,) = of_kind(documents(fleet, "east"), "DynamoGraphDeployment")
    for component in graph["spec"]["components"]:
        labels = component["podTemplate"]["metadata"]["labels"]
        assert labels["inference.prime/deployment"] == "glm-east"
        assert labels["app.kubernetes.io/component"] == component["name"]


def test_the_gateway_has_everything_that_keeps_it_up(fleet):
    items = documents(fleet, "east")
    kinds = {one["kind"] for one in items}
    assert kinds == {
        "DynamoGraphDeployment", "NetworkPolicy", "ConfigMap", "Deployment", "Service",
        "PodDisruptionBudget", "HorizontalPodAutoscaler",
    }  # fmt: skip
    (budget,) = of_kind(items, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 1
    (scaler,) = of_kind(items, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "prod-gateway"


def test_a_gateway_is_told_the_deployments_that_it_can_reach(fleet):
    def told(datacenter):
        configs = of_kind(documents(fleet, datacenter), "ConfigMap")
        (one,) = [config for config in configs if "deployments.json" in config["data"]]
        ready = parse_ready(one["data"]["deployments.json"].encode())
        return {entry.id: entry.base_url for entry in ready}

    assert told("east") == {
        "glm-east": "http://glm-east-frontend.default.svc:8000/v1",
        "glm-west": "http://glm-west.west.example:8000/v1",
    }
    assert told("west") == {"glm-west": "http://glm-west-frontend.default.svc:8000/v1"}


def test_the_second_cache_tier_has_its_master_and_its_share(fleet):
    items = documents(fleet, "east", "gpus")
    (config,) = [one for one in of_kind(items, "ConfigMap") if "config.json" in one["data"]]
    settings = json.loads(config["data"]["config.json"])
    assert settings["master_server_address"] == "glm-east-mooncake.gpus.svc:50051"
    assert settings["global_segment_size"] == 160 << 30
    assert "glm-east-mooncake" in [one["metadata"]["name"] for one in of_kind(items, "Service")]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("smollm2-135m", "one machine only"),
        ("mocker", "the engine 'mocker' plays one"),
        ("vllm-cpu", "'bytes' is a folder of this machine"),
    ],
)
def test_what_is_for_one_machine_is_not_for_clusters(tmp_path, spec, reason):
    with pytest.raises(FleetRefused, match=f"glm-east: .*{reason}"):
        documents(written(tmp_path, GLM_FLEET.replace("glm-5.3-gb200", spec)), "east")


def test_every_object_is_one_that_kubernetes_takes(fleet):
    for datacenter in ("east", "west"):
        for one in documents(fleet, datacenter, "gpus"):
            assert list(object_faults(one)) == [], one["metadata"]["name"]
            assert one["metadata"]["namespace"] == "gpus"


def test_policies_come_before_the_graph(fleet):
    kinds = [one["kind"] for one in documents(fleet, "east")]
    assert kinds[:2] == ["NetworkPolicy", "NetworkPolicy"]
    assert kinds.index("DynamoGraphDeployment") > kinds.index("Service")


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS.values() if gpu.capability])
def test_every_gpu_has_labels_by_which_nodes_are_found(gpu):
    """Whole values: a node's label is compared, not begun with."""
    assert all(re.fullmatch(r"NVIDIA-[-A-Z0-9]+", label) for label in gpu.products)
    assert gpu.products


def test_workers_are_put_on_nodes_of_their_gpu(fleet):
    (graph,) = of_kind(documents(fleet, "east"), "DynamoGraphDeployment")
    pod = graph["spec"]["components"][1]["podTemplate"]["spec"]
    assert "nodeSelector" not in pod
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    (label,) = term["matchExpressions"]
    assert label == {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-GB200"]}


def test_two_fleets_in_a_namespace_select_only_their_own(tmp_path):
    def selectors(name):
        items = documents(written(tmp_path, GLM_FLEET.replace("prod", name)), "east")
        return [
            one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
            for one in items
            if one["kind"] in ("Service", "PodDisruptionBudget", "Deployment")
            and one["metadata"]["name"] == f"{name}-gateway"
        ]

    one, other = selectors("one"), selectors("other")
    assert len(one) == len(other) == 3
    assert all(labels["inference.prime/fleet"] == "one" for labels in one)
    assert all(labels["inference.prime/fleet"] == "other" for labels in other)


def test_a_kubelet_puts_no_variable_into_an_argument():
    spec = find_spec(
        "glm-5.3-h200", changes={"model": {"id": "a/$(HOME)", "source": "$(POD_IP)/x"}}
    )
    rendered = graph(PlannedDeployment("x", "east", spec), "prime")
    arguments = [
        argument
        for component in rendered["spec"]["components"]
        for one in component["podTemplate"]["spec"]["containers"]
        for argument in one["args"]
    ]
    assert {one for one in arguments if "$(" in one} == {"a/$$(HOME)", "$$(POD_IP)/x"}


def test_gateways_share_keys_and_slots_or_are_one(fleet, tmp_path):
    def container(of):
        items = of_kind(documents(of, "east"), "Deployment")
        (gateway,) = [one for one in items if one["metadata"]["name"] == "prod-gateway"]
        return gateway["spec"]["template"]["spec"]["containers"][0]

    shared = {entry["name"]: entry["valueFrom"] for entry in container(fleet)["env"]}
    assert shared == {
        name: {"secretKeyRef": {"name": "prod-shared", "key": name}}
        for name in ("PRIME_REDIS_URL", "PRIME_DATABASE")
    }
    assert value_of(container(fleet)["args"], "--replicas") == "8"
    alone = "replicas = 1\nmax_replicas = 1"
    one = written(tmp_path, GLM_FLEET.replace('secret = "prod-shared"', alone))
    assert container(one)["env"] == []
    with pytest.raises(FleetRefused, match=r"Name a Secret .* in gateway\.secret"):
        documents(written(tmp_path, GLM_FLEET.replace('secret = "prod-shared"', "")), "east")


def test_a_monitoring_namespace_reaches_the_ports_with_metrics_and_nobody_else_does(tmp_path):
    table = 'id = "east"\nkubernetes = { monitoring = "watchers" }'
    items = documents(written(tmp_path, GLM_FLEET.replace('id = "east"', table)), "east")
    engines, frontend = [one["spec"]["ingress"] for one in of_kind(items, "NetworkPolicy")]
    watchers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watchers"}}}
    assert engines[1] == {"from": [watchers], "ports": [{"protocol": "TCP", "port": 9090}]}
    assert watchers in frontend[0]["from"]
    assert all(list(object_faults(one)) == [] for one in items)


# -- commands, and the command line


def test_commands_name_a_host_for_each_node(fleet):
    text = "\n".join(rendered(fleet, "commands", "east"))
    assert text.count("-m dynamo.frontend") == 1
    assert text.count("-m dynamo.vllm") == 8 * 2  # replicas of two nodes
    assert "--data-parallel-start-rank 4" in text
    assert "# HOST_16" in text
    assert "# HOST_17" not in text
    assert "WARNING: nothing below asks who is there" in text


def test_a_models_name_cannot_leave_its_comment(tmp_path):
    """Nor does one that no check has seen: tests/fleet/test_hostile_specs.py."""
    model = 'changes = { model = { id = "a\\ntouch /tmp/x #" } }\n'
    with pytest.raises(SpecImpossible, match="are not printed"):
        written(tmp_path, GLM_FLEET + model)


def test_the_command_prints_what_kubectl_takes(tmp_path):
    file = tmp_path / "fleet.toml"
    file.write_text(GLM_FLEET)
    runner = CliRunner()
    asked = ["inference", "fleet", "render", "kubernetes", str(file), "--datacenter", "east"]
    document = json.loads(runner.invoke(app, asked).output)
    assert document["kind"] == "List"
    refused = runner.invoke(app, asked[:-2])
    assert refused.exit_code == 1
    assert "choose one of east, west" in refused.output
    local = runner.invoke(app, ["inference", "fleet", "render", "local", str(file)])
    assert "dynamo.vllm" in local.output


# -- the file


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ('datacenter = "east"', 'datacenter = "north"', "'north', which is no datacenter of it"),
        ('id = "glm-west"', 'id = "glm-east"', "two deployments have one id"),
        ('name = "prod"', 'name = "Prod"', "lower-case letters"),
        ('id = "glm-west"', 'id = "glm-over2"', "are the controller's"),
        ('secret = "prod-shared"', "replicas = 5\nmax_replicas = 2", "replicas <= max_replicas"),
        ('secret = "prod-shared"', "replicas = 0", "replicas <= max_replicas"),
        ('secret = "prod-shared"', 'secret = "Prod/x"', "63 at most"),
    ],
)
def test_a_fleet_that_contradicts_itself_is_refused(tmp_path, before, after, reason):
    file = tmp_path / "fleet.toml"
    file.write_text(GLM_FLEET.replace(before, after))
    with pytest.raises(SpecImpossible, match=reason):
        read_fleet(file)


def test_a_misspelt_key_of_a_fleet_names_the_right_one(tmp_path):
    file = tmp_path / "fleet.toml"
    file.write_text(GLM_FLEET + 'chnages = { engine = "vllm" }\n')
    with pytest.raises(
        SpecMalformed, match=r"deployment\[1\]: there is no key chnages\. Did you mean changes"
    ):
        read_fleet(file)


def test_the_example_is_a_fleet_of_two_datacenters():
    file = Path(__file__).parents[2] / "examples" / "two-datacenters-dynamo.toml"
    fleet = read_fleet(file)
    assert [one.datacenter for one in fleet.deployments] == ["dc-a", "dc-b"]
    for one in fleet.deployments:
        pools = one.spec.topology.pools
        assert {role: pool.replicas for role, pool in pools.items()} == {"prefill": 2, "decode": 2}
