"""status and deployments, against a gateway that serves the example's fleet."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from prime_inference import compose
from prime_inference.fleet.kubernetes.gateway import SHARED_STATE
from tests.redis_server import RedisServer, executables

from .conftest import COMMAND, Prime

EXAMPLE = Path(__file__).parents[2] / "examples/two-datacenters.toml"


@dataclass
class Served:
    """A gateway over the example, and the folder that has its key."""

    endpoint: dict[str, Any]
    folder: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served") / "state"
    command = [*COMMAND, "inference", "serve", "--config", str(EXAMPLE), "-o", "json"]
    command += ["--port", "0", "--control-port", "0", "--state-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Served(json.loads(process.stdout.readline()), str(folder))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def rows(text: str) -> dict[str, list[str]]:
    """The lines of a plain table by their first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}


def test_status_shows_datacenters_and_deployments(served: Served, prime: Prime):
    result = prime("inference", "status", "--state-dir", served.folder)
    assert (result.exit_code, result.stderr) == (0, "")
    table = rows(result.stdout)
    assert table["east"][1:3] == ["2", "2"]
    assert table["west-2"][:6] == ["west-2", "west", "acme/echo-1", "serving", "closed", "healthy"]
    shown = prime("inference", "status", "--state-dir", served.folder, "-o", "json")
    view = json.loads(shown.stdout)
    assert {one["id"]: one["slots"] for one in view["datacenters"]} == {"east": 128, "west": 128}


def test_a_deployment_is_added_moved_drained_resumed_and_removed(served: Served, prime: Prime):
    here = ["--state-dir", served.folder]

    def deployments(*args: str) -> Any:
        result = prime("inference", "deployments", *args, *here, "-o", "json")
        assert (result.exit_code, result.stderr) == (0, "")
        return {one["id"]: one for one in json.loads(result.stdout)["deployments"]}

    new = ["--model", "acme/echo-1", "--datacenter", "west", "--slots", "3"]
    started = deployments("add", "west-3", *new, "--engine", "mock")["west-3"]
    assert httpx.get(f"{started['base_url']}/models").status_code == 200
    address = ["--base-url", started["base_url"]]
    assert deployments("add", "west-4", *new, *address)["west-4"]["state"] == "serving"
    moved = deployments("move", "west-4", "--datacenter", "east", "--slots", "4")["west-4"]
    assert (moved["datacenter"], moved["slots"]) == ("east", 4)
    assert deployments("drain", "west-4", "--wait", "20")["west-4"]["in_flight"] == 0
    assert deployments("drain", "west-1")["west-1"]["state"] == "drained"
    shown = json.loads(prime("inference", "status", *here, "-o", "json").stdout)["changes"]
    assert [(one["deployment"], one["change"]) for one in shown] == [
        ("west-1", "drained"), ("west-3", "added"), ("west-4", "added"), ("west-4", "drained"),
    ]  # fmt: skip
    assert shown[2]["values"]["slots"] == 4
    text = prime("inference", "status", *here).stdout
    assert "west-4" in text.partition("Changed over the file")[2]
    assert deployments("resume", "west-1")["west-1"]["state"] == "serving"
    assert deployments("resume", "west-4")["west-4"]["state"] == "serving"
    assert "west-4" not in deployments("remove", "west-4")
    assert "west-3" not in deployments("remove", "west-3")
    listed = prime("inference", "deployments", "list", *here)
    assert list(rows(listed.stdout)) == ["Deployment", "east-1", "east-2", "west-1", "west-2"]


def test_what_the_gateway_refuses_is_said(served: Served, prime: Prime):
    here = ["--state-dir", served.folder]
    for args, said in (
        (["drain", "east-9"], "There is no deployment east-9. Did you mean "),
        (["move", "east-1", "--base-url", "http://127.0.0.1:1/v1"], "cannot move"),
        (
            ["add", "x", "--model", "acme/ech", "--datacenter", "east", "--slots", "1",
             "--base-url", "http://127.0.0.1:1/v1"],
            "Did you mean acme/echo-1",
        ),
    ):  # fmt: skip
        result = prime("inference", "deployments", *args, *here)
        assert (result.exit_code, result.stdout) == (1, "")
        assert said in result.stderr


def test_status_is_watched_until_ctrl_c(served: Served):
    command = [*COMMAND, "inference", "status", "--state-dir", served.folder]
    command += ["--watch", "--every", "0.1", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert len(json.loads(process.stdout.readline())["deployments"]) == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_a_gateway_elsewhere_is_named_with_its_key(served: Served, prime: Prime, tmp_path: Path):
    url = served.endpoint["control_url"]
    elsewhere = ["inference", "status", "--control-url", url, "--state-dir", str(tmp_path)]
    unknown = prime(*elsewhere)
    assert (unknown.exit_code, "PRIME_CONTROL_KEY" in unknown.stderr) == (1, True)
    wrong = prime(*elsewhere, PRIME_CONTROL_KEY="pi_live_wrong")
    assert (wrong.exit_code, "needs the key" in wrong.stderr) == (1, True)
    right = prime(*elsewhere, PRIME_CONTROL_KEY=served.endpoint["api_key"])
    assert right.exit_code == 0


def test_without_a_gateway_that_is_said(prime: Prime, tmp_path: Path):
    result = prime("inference", "status", "--state-dir", str(tmp_path), "-o", "json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert json.loads(result.stderr)["error"]["code"] == "nothing_answers"


def test_gateways_of_one_file_lease_its_slots_from_one_redis_and_are_told_together(
    prime: Prime, tmp_path: Path, served: Served
):
    fleet = tmp_path / "fleet.toml"
    shown = prime("inference", "status", "--state-dir", served.folder, "-o", "json")
    engine = json.loads(shown.stdout)["deployments"][0]["base_url"]
    text = EXAMPLE.read_text().replace('"mock"', f'"vllm"\nbase_url = "{engine}"')
    fleet.write_text("\n".join(line for line in text.splitlines() if not line.startswith("mock =")))
    redis = RedisServer(next(iter(executables().values())), tmp_path)
    command = [*COMMAND, "inference", "gateway", "--config", str(fleet), "--redis", redis.url]
    command += ["--port", "0", "--control-port", "0", "-o", "json"]
    folders = [str(tmp_path / "one"), str(tmp_path / "two")]
    processes = [
        subprocess.Popen([*command, "--state-dir", folder], stdout=subprocess.PIPE)
        for folder in folders
    ]
    try:
        announced = []
        for process in processes:
            assert process.stdout is not None
            announced.append(json.loads(process.stdout.readline()))
            assert announced[-1]["model"] == "acme/echo-1"
        deadline = time.monotonic() + 30
        while redis.command("HKEYS", "prime:{blocks}:west-2").count("'h:") != len(folders):
            assert time.monotonic() < deadline, "they have no slots"
            time.sleep(0.2)
        assert not any(degraded(prime, folder) for folder in folders)
        told_together(prime, folders, announced)
        processes[0].send_signal(signal.SIGINT)
        assert processes[0].wait(20) == 0
        told_in_part(prime, announced)
        processes[1].send_signal(signal.SIGINT)
        assert processes[1].wait(20) == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        redis.stop()


def told_together(prime: Prime, folders: list[str], announced: list[dict[str, Any]]) -> None:
    """By their folders, and by their URLs with a key for each."""
    both = [word for folder in folders for word in ("--state-dir", folder)]
    drained = prime("inference", "deployments", "drain", "west-1", *both)
    assert drained.exit_code == 0
    for one in announced:
        assert f"{one['control_url']}: west-1 drains" in drained.stderr
    urls = {
        "PRIME_CONTROL_URLS": ",".join(one["control_url"] for one in announced),
        "PRIME_CONTROL_KEY": ",".join(one["api_key"] for one in announced),
    }
    resumed = prime("inference", "deployments", "resume", "west-1", "-o", "json", **urls)
    assert (resumed.exit_code, resumed.stderr) == (0, "")
    reports = json.loads(resumed.stdout)["gateways"]
    assert [one["control_url"] for one in reports] == [one["control_url"] for one in announced]
    for one in reports:
        assert {d["id"]: d["state"] for d in one["fleet"]["deployments"]}["west-1"] == "serving"
    several = prime("inference", "status", **urls)
    assert (several.exit_code, "one gateway" in several.stderr) == (1, True)
    keys = prime("inference", "deployments", "resume", "west-1", **{
        **urls, "PRIME_CONTROL_KEY": "a,b,c",
    })  # fmt: skip
    assert (keys.exit_code, "3 values for 2 gateways" in keys.stderr) == (1, True)


def told_in_part(prime: Prime, announced: list[dict[str, Any]]) -> None:
    """The first of two is gone: the second does it, and the command says which did not."""
    (gone, here), keys = [one["control_url"] for one in announced], announced[1]["api_key"]
    command = ["inference", "deployments", "drain", "west-1"]
    command += ["--control-url", gone, "--control-url", here, "-o", "json"]
    partly = prime(*command, PRIME_CONTROL_KEY=keys)
    assert partly.exit_code == 1
    first, second = json.loads(partly.stdout)["gateways"]
    assert (first["control_url"], first["error"]["code"]) == (gone, "nothing_answers")
    assert second["fleet"]["changes"][0]["change"] == "drained"
    error = json.loads(partly.stderr)["error"]
    assert error["code"] == "gateways_failed"
    assert error["message"].startswith(f"1 of 2 gateways have not done it. {gone}: ")


def degraded(prime: Prime, folder: str) -> bool:
    shown = prime("inference", "status", "--state-dir", folder, "-o", "json")
    view: dict[str, bool] = json.loads(shown.stdout)
    return view["degraded"]


def test_gateways_of_a_rendered_fleet_are_told_by_their_environment_what_they_share(
    prime: Prime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    told = []

    async def fleet_gateway(options: compose.FleetGatewayOptions, _: object) -> None:
        told.append(options.listen)

    monkeypatch.setattr(compose, "fleet_gateway", fleet_gateway)
    command = ["inference", "fleet", "gateway", str(tmp_path / "deployments.json")]
    command += ["--port", "0", "--control-port", "0", "--replicas", "8"]
    urls = ("redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/p")
    shared = dict(zip(SHARED_STATE, urls, strict=True))
    assert prime(*command, **shared).exit_code == 0
    (listen,) = told
    assert listen.billing is not None
    assert (listen.redis_url, listen.billing.redis) == (shared["PRIME_REDIS_URL"],) * 2
    assert (listen.billing.database, listen.billing.replicas) == (shared["PRIME_DATABASE"], 8)
    refused = prime(*command, "--redis", "nonsense")
    assert refused.exit_code == 1
    assert "--redis is like redis://host" in refused.stderr
