"""Servers as child processes: announced, asked, stopped, and refused a port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from prime_inference.cli import private_server
from prime_inference.cli.failures import ServerFailed
from prime_inference.cli.local_server import find_local_server

from .conftest import COMMAND, Prime

INFERENCE = [*COMMAND, "inference"]
EXAMPLE = Path(__file__).parents[2] / "examples/two-datacenters.toml"
FREE_PORTS = ["--port", "0", "--control-port", "0"]
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine(environment: dict[str, str]) -> Iterator[str]:
    """The base URL of a mock engine."""
    command = [*INFERENCE, "mock-engine", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        yield announced(process.stdout)["base_url"]
        process.terminate()
        assert process.wait(10) == 0


def announced(stdout: IO[bytes] | None) -> dict[str, Any]:
    assert stdout is not None
    document = json.loads(stdout.readline())
    assert isinstance(document, dict)
    return document


def behave(engine: str, behaviour: str) -> None:
    """From now on the engine treats every request like this."""
    url = f"{engine.removesuffix('/v1')}/mock/behaviour"
    httpx.post(url, json={"behaviour": behaviour}).raise_for_status()


def gateway(engine: str, *args: str) -> list[str]:
    named = ["--upstream", engine, "--model-id", "mock/plain", *FREE_PORTS]
    return [*INFERENCE, "gateway", *named, *args]


def test_a_server_is_announced_found_asked_and_stopped(
    engine: str, environment: dict[str, str], prime: Prime, home: Path
):
    state = home / ".local/state/prime-inference"
    nothing_set = {"PRIME_INFERENCE_URL": None, "PRIME_API_KEY": None}
    command = gateway(engine, "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        endpoint = announced(process.stdout)
        assert set(endpoint) == {"base_url", "control_url", "api_key", "model"}
        local = find_local_server(state)
        assert local is not None
        assert (local.base_url, local.api_key) == (endpoint["base_url"], endpoint["api_key"])
        listed = prime("inference", "models", "-o", "json", **nothing_set)
        assert [row["id"] for row in json.loads(listed.stdout)["data"]] == ["mock/plain"]
        options = ["--stream", "--stats", "--max-tokens", "5"]
        said = prime("inference", "chat", "mock/plain", "hi", *options, **nothing_set)
        assert (said.exit_code, said.stdout != "") == (0, True)
        assert "5 completion tokens" in said.stderr
        wrong = prime("inference", "chat", "mock/plane", "hi", **nothing_set)
        assert (wrong.exit_code, wrong.stdout) == (1, "")
        assert "Did you mean mock/plain?" in wrong.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert find_local_server(state) is None


def test_a_person_is_shown_url_key_and_a_snippet(engine: str, environment: dict[str, str]):
    with subprocess.Popen(
        gateway(engine), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(20)]
        process.terminate()
        assert process.wait(20) == 0
    text = "".join(lines)
    snippet = text[text.index("from openai") : text.index("From another terminal")]
    compile("\n".join(line.removeprefix("  ") for line in snippet.splitlines()), "snippet", "exec")
    assert "pi_live_" in text
    assert "/api/v1" in text


def test_a_second_server_of_one_state_folder_does_not_start(
    engine: str, environment: dict[str, str], home: Path
):
    command = gateway(engine, "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        first = announced(process.stdout)
        second = subprocess.run(
            gateway(engine), capture_output=True, env=environment, timeout=30, check=False
        )
        assert (second.returncode, second.stdout) == (1, b"")
        (line,) = second.stderr.decode().splitlines()
        assert line.startswith(f"Error: Another server (process {process.pid}) uses the state")
        assert "--state-dir" in line
        local = find_local_server(home / ".local/state/prime-inference")
        assert local is not None
        assert local.base_url == first["base_url"]
        process.kill()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        announced(process.stdout)
        process.terminate()
        assert process.wait(20) == 0


def start_endless_answer(endpoint: dict[str, Any]) -> socket.socket:
    """Ask for an answer that does not end, and return when it has begun."""
    url = httpx.URL(endpoint["base_url"])
    body = json.dumps({"model": "mock/plain", "messages": MESSAGES, "stream": True})
    connection = socket.create_connection((url.host, url.port or 0))
    connection.sendall(
        f"POST /api/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        f"authorization: Bearer {endpoint['api_key']}\r\n\r\n{body}".encode()
    )
    assert connection.recv(16).startswith(b"HTTP/1.1 200")
    return connection


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_at_once_and_the_exit_code_says_so(
    engine: str, environment: dict[str, str], tmp_path: Path, number: signal.Signals
):
    behave(engine, "pace-20ms.answer-50000")
    command = gateway(engine, "-o", "json", "--state-dir", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        endpoint = announced(process.stdout)
        with start_endless_answer(endpoint):
            process.send_signal(number)
            ready = f"{endpoint['control_url']}/ready"
            while httpx.get(ready).status_code == 200:
                time.sleep(0.02)
            process.send_signal(number)
            assert process.wait(20) == 128 + number
    (line,) = (tmp_path / "generations.jsonl").read_text().splitlines()
    assert json.loads(line)["outcome"] == "shutdown"


def test_a_hangup_reads_the_fleet_again_and_other_signals_kill_nobody(
    engine: str, environment: dict[str, str], tmp_path: Path
):
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        '[[models]]\nid = "mock/plain"\nrevision = "r1"\ncontext_tokens = 4096\n'
        '[[datacenters]]\nid = "east"\n'
        '[[deployments]]\nid = "one"\nmodel = "mock/plain"\ndatacenter = "east"\n'
        f'engine = "vllm"\nslots = 8\nbase_url = "{engine}"\n'
    )
    command = [*INFERENCE, "gateway", "--config", str(fleet), *FREE_PORTS, "-o", "json"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    )
    with process:
        metrics = f"{announced(process.stdout)['control_url']}/metrics"
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            process.send_signal(number)
        read = 'prime_fleet_reloads_total{outcome="taken"} 1.0'
        limit = time.monotonic() + 30
        while read not in httpx.get(metrics).text and time.monotonic() < limit:
            time.sleep(0.05)
        assert read in httpx.get(metrics).text
        process.terminate()
        assert process.wait(20) == 0


def test_a_server_started_with_ctrl_c_ignored_hears_it_all_the_same(
    engine: str, environment: dict[str, str]
):
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *gateway(engine, "-o", "json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        announced(process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize("option", ["--port", "--control-port"])
def test_a_port_in_use_is_said_with_what_to_do(environment: dict[str, str], option: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--port": "0", "--control-port": "0", option: port}
        given = [part for pair in ports.items() for part in pair]
        for command in (["serve"], ["gateway", "--upstream", "http://h/v1", "--model-id", "m"]):
            done = subprocess.run(
                [*INFERENCE, *command, *given], capture_output=True, env=environment,
                timeout=30, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stdout) == (1, b"")
            first, second = done.stderr.decode().splitlines()
            assert first.startswith(f"Error: Port {port} of 127.0.0.1 is in use")
            assert f"{option} 0" in second


def test_a_mock_engine_on_a_port_in_use_says_so_too(prime: Prime):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = prime("inference", "mock-engine", "--port", str(taken.getsockname()[1]))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--port 0 takes any free one" in result.stderr


def test_one_port_cannot_be_both_listeners(prime: Prime):
    result = prime("inference", "serve", "--port", "9000", "--control-port", "9000")
    assert result.exit_code == 1
    assert "both 9000" in result.stderr


def test_a_host_that_is_not_this_machines_is_refused(prime: Prime):
    result = prime("inference", "serve", "--host", "192.0.2.1", "--port", "0")
    assert result.exit_code == 1
    assert "Cannot listen on 192.0.2.1" in result.stderr


def test_a_model_file_that_does_not_exist_is_named(prime: Prime):
    result = prime("inference", "serve", "--model", "nowhere.gguf")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "There is no file nowhere.gguf." in result.stderr


def test_a_state_folder_that_cannot_be_used_is_named(
    engine: str, environment: dict[str, str], home: Path
):
    (home / "file").write_text("")
    done = subprocess.run(
        gateway(engine, "--state-dir", str(home / "file" / "state")), capture_output=True,
        env=environment, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"Error: The state folder ")


def test_a_behaviour_that_does_not_exist_is_refused(prime: Prime):
    result = prime("inference", "mock-engine", "--behaviour", "sulk")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: --behaviour: ")


# -- the server that `chat --serve` starts


def test_a_private_server_runs_for_as_long_as_it_is_needed(engine: str, tmp_path: Path):
    command = gateway(engine, "-o", "json", "--state-dir", str(tmp_path))
    with private_server.running(command) as server:
        assert server.model == "mock/plain"
        local = find_local_server(tmp_path)
        assert local is not None
        assert local.base_url == server.base_url
    assert find_local_server(tmp_path) is None


def test_chat_starts_a_server_asks_it_and_stops_it(
    engine: str, prime: Prime, monkeypatch: pytest.MonkeyPatch
):
    used: list[Path] = []

    def command(state_folder: Path, gguf: str | None) -> list[str]:
        used.append(state_folder)
        return gateway(engine, "-o", "json", "--state-dir", str(state_folder))

    monkeypatch.setattr(private_server, "serve_command", command)
    result = prime("inference", "chat", "--serve", "mock/plain", "hi", "--stream", "--stats")
    assert (result.exit_code, result.stdout != "") == (0, True)
    assert "completion tokens" in result.stderr
    by_file = prime("inference", "chat", "--serve", "./some.gguf", "hi")
    assert by_file.exit_code == 0  # the model that the server announced was asked
    assert len(used) == 2
    assert not any(folder.exists() for folder in used)


CHAT_SERVE = """
import json, sys
from prime_inference.cli import private_server
from prime_inference.cli.main import main

command = json.loads(sys.argv.pop(1))
private_server.serve_command = lambda folder, gguf: [*command, "--state-dir", str(folder)]
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_chat_that_is_told_to_end_stops_its_server_and_leaves_no_folder(
    engine: str, environment: dict[str, str], tmp_path: Path, number: signal.Signals
):
    behave(engine, "pace-20ms.answer-5000")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    server = json.dumps(gateway(engine, "-o", "json"))
    chat = ["inference", "chat", "--serve", "mock/plain", "hi", "--stream"]
    with subprocess.Popen(
        [sys.executable, "-c", CHAT_SERVE, server, *chat],
        stdout=subprocess.PIPE,
        env={**environment, "TMPDIR": str(temporary)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        (folder,) = temporary.iterdir()
        pid = json.loads((folder / "endpoint.json").read_bytes())["pid"]
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert list(temporary.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_private_server_leaves_nothing_when_whoever_started_it_is_killed(
    environment: dict[str, str], tmp_path: Path
):
    folder = tmp_path / "state"
    command = [*INFERENCE, "serve", "--private", "-o", "json", "--state-dir", str(folder)]
    command += ["--config", str(EXAMPLE), *FREE_PORTS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert announced(process.stdout)["base_url"]
        assert folder.exists()
        assert process.stdin is not None
        process.stdin.close()  # as the kernel does it
        assert process.wait(20) == 0
    assert not folder.exists()


def test_a_private_server_that_does_not_come_up_is_an_error():
    with (
        pytest.raises(ServerFailed, match="exit code 7"),
        private_server.running([sys.executable, "-c", "raise SystemExit(7)"]),
    ):
        pytest.fail("it is not ready")


def test_a_private_server_that_says_something_else_is_stopped():
    talk = "import time; print('hello', flush=True); time.sleep(60)"
    with (
        pytest.raises(ServerFailed, match="in a way unknown here"),
        private_server.running([sys.executable, "-c", talk]),
    ):
        pytest.fail("it is not ready")


def test_a_private_server_that_will_not_stop_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(private_server, "STOP_SECONDS", 0.2)
    stubborn = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1], 'w').write(str(os.getpid()));"
        """print('{"base_url": "u", "model": "m", "api_key": "k"}', flush=True); time.sleep(60)"""
    )
    with private_server.running([sys.executable, "-c", stubborn, str(tmp_path / "pid")]):
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_told_so_stops_when_its_starter_is_gone():
    wait = (
        "import threading, time; from prime_inference.cli.serve import _stop_when_stdin_closes;"
        "threading.Thread(target=_stop_when_stdin_closes, daemon=True).start(); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == -signal.SIGTERM


def test_a_model_file_goes_to_the_private_server_and_an_id_does_not(tmp_path: Path):
    by_file = private_server.serve_command(tmp_path, "x.gguf")
    assert by_file[-2:] == ["--model", "x.gguf"]
    assert "--model" not in private_server.serve_command(tmp_path, None)


# -- fleets


def test_a_fleet_is_served_from_a_file_and_its_engines_run_and_end_with_it(
    environment: dict[str, str],
):
    command = [*INFERENCE, "serve", "--config", str(EXAMPLE), *FREE_PORTS, "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        endpoint = announced(process.stdout)
        endpoints = httpx.get(f"{endpoint['base_url']}/models/acme/echo-1/endpoints").json()
        places = [each["provider_name"] for each in endpoints["data"]["endpoints"]]
        assert places == ["east", "east", "west", "west"]
        key = {"authorization": f"Bearer {endpoint['api_key']}"}
        question = {"model": "acme/echo-1", "messages": [{"role": "user", "content": "hi"}]}
        url = f"{endpoint['base_url']}/chat/completions"
        assert httpx.post(url, json=question, headers=key).status_code == 200
        engines = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(engines) == 4
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert not any(Path(f"/proc/{engine}").exists() for engine in engines)


def test_a_fleet_that_is_wrong_is_said_before_anything_starts(prime: Prime, tmp_path: Path):
    file = tmp_path / "fleet.toml"
    file.write_text(EXAMPLE.read_text().replace("slots", "slotz"))
    for command in ("serve", "gateway"):
        result = prime("inference", command, "--config", str(file), *FREE_PORTS)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"Error: {file}: deployments[0]: there is no key slotz.")


def test_a_config_and_a_single_upstream_exclude_each_other(prime: Prime):
    for options in (
        ["gateway", "--config", str(EXAMPLE), "--upstream", "http://127.0.0.1:1/v1"],
        ["gateway", "--model-id", "acme/echo-1"],
        ["serve", "--config", str(EXAMPLE), "--model-id", "acme/echo-1"],
    ):
        result = prime("inference", *options)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "--config" in result.stderr


def test_a_store_that_is_no_redis_is_refused(prime: Prime):
    named = ["--upstream", "http://127.0.0.1:1/v1", "--model-id", "m"]
    result = prime("inference", "gateway", *named, *FREE_PORTS, "--redis", "http://127.0.0.1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--redis is like redis://" in result.stderr
