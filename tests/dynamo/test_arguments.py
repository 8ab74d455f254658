"""What is rendered, in front of the parsers that will read it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_inference.fleet.arguments import (
    NodeRank,
    WorkerPorts,
    frontend_arguments,
    nodes_of,
    worker_arguments,
    worker_module,
)
from prime_inference.fleet.catalogue import find_spec, spec_names
from prime_inference.fleet.check import REASONING_PARSERS, TOOL_PARSERS
from prime_inference.fleet.kubernetes.graph import FRONTENDS
from tests.dynamo import parsers

VLLM_PYTHON = os.environ.get("PRIME_VLLM_PYTHON", "")


def ask(python: str, questions):
    environment = os.environ | {"DYN_DISCOVERY_BACKEND": "file", "PYTHONPATH": ""}
    done = subprocess.run(
        [python, parsers.__file__],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def command_lines(engines):
    for name in spec_names():
        spec = find_spec(name)
        if spec.engine not in engines:
            continue
        for role, pool in spec.topology.pools.items():
            several = nodes_of(spec, pool) > 1
            for rank in (None, NodeRank(1, "host-1")) if several else (None,):
                arguments = worker_arguments(
                    spec, role, pool, source="model", ports=WorkerPorts(), rank=rank
                )
                yield worker_module(spec), arguments


def frontends():
    for name in spec_names():
        for count in (1, FRONTENDS):
            spec = find_spec(name)
            yield (
                "dynamo.frontend",
                frontend_arguments(spec, host="127.0.0.1", port=1, frontends=count),
            )


def test_dynamo_takes_every_frontend_and_mocker(dynamo_python):
    lines = [*frontends(), *command_lines({"mocker"})]
    answers, errors = ask(dynamo_python, lines)
    assert answers == [None] * len(lines), errors
    assert "deprecated" not in errors


def test_dynamo_takes_a_router_with_other_weights(dynamo_python):
    changes = {"router": {"mode": "kv", "host_hit_weight": 0.5, "temperature": 0.2}}
    line = frontend_arguments(find_spec("mocker", changes=changes), host="h", port=1)
    assert "--router-temperature" in line
    answers, errors = ask(dynamo_python, [("dynamo.frontend", line)])
    assert answers == [None], errors


@pytest.mark.parametrize("mode", ["round-robin", "random", "least-loaded"])
def test_dynamo_takes_every_router_mode(dynamo_python, mode):
    spec = find_spec("mocker", changes={"router": {"mode": mode}})
    answers, errors = ask(
        dynamo_python, [("dynamo.frontend", frontend_arguments(spec, host="h", port=1))]
    )
    assert answers == [None], errors


def test_an_unknown_flag_would_be_noticed(dynamo_python):
    answers, _ = ask(dynamo_python, [("dynamo.frontend", ["--no-such-flag"])])
    assert answers == ["refused: see standard error"]


def test_dynamo_has_the_parsers_that_specs_may_name(dynamo_python):
    ((known,), _) = ask(dynamo_python, [("names", [])])
    assert set(known["tools"]) == TOOL_PARSERS
    assert set(known["reasoning"]) == REASONING_PARSERS


@pytest.mark.skipif(not VLLM_PYTHON, reason="PRIME_VLLM_PYTHON names no interpreter with vLLM")
def test_vllm_takes_every_worker():
    lines = list(command_lines({"vllm"}))
    answers, errors = ask(VLLM_PYTHON, lines)
    assert answers == [None] * len(lines), errors


def test_this_test_runs_apart_from_dynamo():
    assert importlib.util.find_spec("dynamo") is None
    assert Path(sys.executable) != Path(os.environ["PRIME_DYNAMO_PYTHON"])
