"""Whatever stands in a spec or a fleet's file: an error that says so, never a traceback."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from prime_inference.cli.main import app
from prime_inference.domain.fleet import MOST_SLOTS
from prime_inference.fleet.catalogue import find_model, find_spec, read_spec, spec_names
from prime_inference.fleet.check import bounds
from prime_inference.fleet.commands import commands
from prime_inference.fleet.errors import FleetError, SpecImpossible
from prime_inference.fleet.fleet import (
    Fleet,
    FleetFile,
    GatewayEntry,
    PlannedDeployment,
    read_fleet,
)
from prime_inference.fleet.plan import make_plan
from prime_inference.fleet.ready import ReadyDeployment, fault
from prime_inference.fleet.render import rendered

NAN, INF = float("nan"), float("inf")
VALUES: tuple[object, ...] = (
    NAN, INF, -INF, 1e308, -1, 0, 1, 2**31 - 1, -(2**62), "", "-x", "x\ntouch PWNED #",
    "$(touch PWNED)", "a: b\n- c", "\x1b[2J", "DEP8", True, [], {},
)  # fmt: skip
ENGINES = {"vllm": "glm-5.3-gb200", "mocker": "mocker", "llama.cpp": "smollm2-135m"}
FLEET = {
    "name": "prod",
    "datacenter": [
        {"id": "east", "frontend_url": "http://{deployment}.east/v1", "gpus": 1, "surge": 1},
    ],
    "deployment": [
        {"id": "d1", "datacenter": "east", "spec": "qwen3-0.6b", "changes": {"name": "x"}},
    ],
    "gateway": msgspec.to_builtins(GatewayEntry()),
    "overflow": {"gpu_budget": 4, "full": 0.85, "idle": 0.4, "full_seconds": 60.0,
                 "idle_seconds": 900.0},
}  # fmt: skip


def places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every value of a document that holds no others."""
    if isinstance(document, dict | list):
        for key, value in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(value, (*path, key))
    else:
        yield path


def put(document: Any, path: tuple[str | int, ...], value: object) -> Any:
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = put(document[path[0]], path[1:], value)
    return copy


def toml(document: Mapping[str, Any]) -> str:
    """Enough of TOML for a fleet's file."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in document.items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def use(fleet: Fleet) -> None:
    """Everything that is derived from a fleet without starting it."""
    for target in ("kubernetes", "commands", "local"):
        try:
            lines = list(rendered(fleet, target, None))
        except FleetError:
            continue
        if target != "kubernetes":
            assert not any("\n" in line or "\x1b" in line for line in lines)
    for one in fleet.deployments:
        assert fault(ReadyDeployment.of(one, "http://127.0.0.1:1/v1")) is None
        make_plan(one.spec, find_model(one.spec.model.architecture))


@pytest.mark.parametrize("engine", ENGINES)
def test_any_value_in_a_spec_is_taken_or_refused_with_a_reason(engine: str) -> None:
    name = ENGINES[engine]
    base = msgspec.to_builtins(read_spec(name))
    taken = 0
    for path in places(base):
        for value in VALUES:
            try:
                spec = find_spec(name, changes=put(base, path, value))
                planned = PlannedDeployment("d1", "east", spec)
                use(replace_deployment(planned))
            except FleetError:
                continue
            taken += 1
    assert taken


def replace_deployment(planned: PlannedDeployment) -> Fleet:
    file = msgspec.convert(FLEET, FleetFile)
    return Fleet("prod", tuple(file.datacenter), (planned,), file.gateway)


def test_any_value_in_a_fleets_file_is_taken_or_refused_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    taken = 0
    for path in places(FLEET):
        for value in VALUES:
            file.write_text(toml(put(FLEET, path, value)))
            try:
                fleet = read_fleet(file)
                use(fleet)
            except FleetError:
                continue
            taken += 1
    assert taken


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("limits.max_output_tokens", -1),
        ("limits.max_output_tokens", 0),
        ("limits.slots", MOST_SLOTS + 1),
        ("router.temperature", NAN),
        ("router.overlap_credit", INF),
        ("mocker.speedup", NAN),
        ("mocker.speedup", -1.0),
        ("mocker.gpu_blocks", 0),
        ("mocker.gpu_blocks", 1),
        ("mocker.host_blocks", -1),
        ("kv.memory_fraction", NAN),
        ("kv.block_tokens", 0),
        ("slo.history_tokens", 0),
        ("slo.first_token_ms", NAN),
        ("model.id", ""),
        ("model.revision", ""),
        ("model.id", "x\ny"),
        ("model.source", ""),
        ("tools.reasoning_parser", "nonsense"),
        ("tools.reasoning_parser", "qwen"),
        ("image", ""),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(field: str, value: object) -> None:
    changes: Any = value
    for key in reversed(field.split(".")):
        changes = {key: changes}
    with pytest.raises(FleetError, match=field.replace(".", r"\.")):
        find_spec("mocker", changes=changes)


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        ("gateway", {"port": 99_999}),
        ("gateway", {"port": -1}),
        ("gateway", {"port": 8000, "control_port": 8000}),
        ("gateway", {"replicas": 0}),
        ("gateway", {"replicas": 5, "max_replicas": 2}),
        ("gateway", {"notice_seconds": NAN}),
        ("gateway", {"image": "x\n  evil: true"}),
        ("overflow", {"full": 7.0}),
        ("overflow", {"full": NAN}),
        ("overflow", {"full_seconds": NAN}),
        ("overflow", {"gpu_budget": -3}),
        ("overflow", {"ready_seconds": NAN}),
    ],
)
def test_a_gateway_and_overflow_that_cannot_be_are_refused(
    tmp_path: Path, table: str, changes: dict[str, object]
) -> None:
    (tmp_path / "fleet.toml").write_text(toml({**FLEET, table: {**FLEET[table], **changes}}))
    with pytest.raises(SpecImpossible, match=table):
        read_fleet(tmp_path / "fleet.toml")


@pytest.mark.parametrize(
    "server",
    [
        "http://127.0.0.1:99999",
        "a\nb: c",
        "http://[::1",
        "--help",
        "ftp://x",
        "https://",
        "http://a b",
    ],
)
def test_an_api_server_that_has_no_address_is_refused(tmp_path: Path, server: str) -> None:
    """One of them once ended every step of the controller."""
    datacenters = [{"id": "east", "kubernetes": {"server": server}}]
    (tmp_path / "fleet.toml").write_text(toml({**FLEET, "datacenter": datacenters}))
    with pytest.raises(SpecImpossible, match="east: server"):
        read_fleet(tmp_path / "fleet.toml")


def test_two_datacenters_are_not_one_namespace_of_one_server(tmp_path: Path) -> None:
    """Each would take what the other has for its own."""
    places = [
        {"id": name, "kubernetes": {"server": "https://k:6443/x", "namespace": namespace}}
        for name, namespace in (("east", "prime"), ("west", "prime"), ("north", "other"))
    ]
    (tmp_path / "fleet.toml").write_text(toml({**FLEET, "datacenter": places}))
    with pytest.raises(SpecImpossible, match=r"two datacenters are namespace 'prime'"):
        read_fleet(tmp_path / "fleet.toml")
    (tmp_path / "fleet.toml").write_text(toml({**FLEET, "datacenter": places[::2]}))
    assert len(read_fleet(tmp_path / "fleet.toml").datacenters) == 2


def test_every_number_of_a_spec_has_a_bound() -> None:
    """But for the sizes of a spread, which are text."""
    bounded = {bound.field for name in spec_names() for bound in bounds(find_spec(name))}
    bounded.add("router.host_hit_weight")  # with words of its own
    for name in spec_names():
        document = msgspec.to_builtins(find_spec(name))
        for pool, role in (("workers", "aggregated"), ("prefill", "prefill"), ("decode", "decode")):
            document["topology"][f"{role}"] = document["topology"].pop(pool)
        for path in places(document):
            value = document
            for key in path:
                value = value[key]
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert ".".join(map(str, path)) in bounded


def test_no_name_breaks_out_of_the_script_that_is_rendered(tmp_path: Path) -> None:
    """Even one that no check has seen."""
    mark = tmp_path / "PWNED"
    evil = f"x\ntouch {mark} #$(touch {mark})`touch {mark}`'; touch {mark} #"
    spec = find_spec("mocker")
    spec = replace(spec, model=replace(spec.model, id=evil, revision=evil, source=evil))
    script = "\n".join(commands(PlannedDeployment(evil, evil, spec)))
    for program in ("etcd", "python3", "mooncake_master"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    subprocess.run(
        ["/bin/sh"], input=script, text=True, check=True, env={"PATH": f"{tmp_path}:/bin"}
    )
    assert not mark.exists()
    assert shlex.quote(evil) in script


def test_a_spec_that_cannot_work_is_told_with_its_deployment(tmp_path: Path) -> None:
    changes = {"limits": {"slots": 0}}
    (tmp_path / "fleet.toml").write_text(toml(put(FLEET, ("deployment", 0, "changes"), changes)))
    with pytest.raises(SpecImpossible, match=r"d1 \(qwen3-0\.6b\) cannot work"):
        read_fleet(tmp_path / "fleet.toml")


@pytest.mark.parametrize("name", ["/etc/passwd", "../../secrets", "no-such", "*", "**", "[t]iny"])
def test_logs_are_those_of_the_fleet_only(tmp_path: Path, name: str) -> None:
    logs = tmp_path / "fleets" / "prod" / "logs"
    logs.mkdir(parents=True)
    (logs / "tiny.decode-0.log").touch()
    shown = CliRunner().invoke(
        app, ["inference", "fleet", "logs", name, "--state-dir", f"{tmp_path}"]
    )
    assert isinstance(shown.exception, SystemExit)
    assert "There is no log" in shown.output


@pytest.mark.parametrize("namespace", ["", "a b; {evil}", "UP", "x" * 64, "-x"])
def test_a_namespace_is_one_of_kubernetes(namespace: str) -> None:
    fleet = replace_deployment(PlannedDeployment("d1", "east", find_spec("mocker")))
    with pytest.raises(FleetError, match="no namespace"):
        list(rendered(fleet, "kubernetes", None, namespace))


def test_the_longest_name_with_all_that_is_appended_is_a_dns_label(tmp_path: Path) -> None:
    document = put(FLEET, ("deployment", 0, "id"), "a" * 38)
    (tmp_path / "fleet.toml").write_text(toml(document))
    (deployment,) = read_fleet(tmp_path / "fleet.toml").deployments
    assert len(f"{deployment.id}-over1000-abcdef-frontend") <= 63
    (tmp_path / "fleet.toml").write_text(toml(put(document, ("deployment", 0, "id"), "a" * 39)))
    with pytest.raises(SpecImpossible, match="38 at most"):
        read_fleet(tmp_path / "fleet.toml")
