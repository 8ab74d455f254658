"""vLLM without a GPU: the model that is made for it, and what it is told besides."""

from __future__ import annotations

import json
import math
from itertools import count, pairwise
from pathlib import Path

from prime_inference.fleet import parameters
from prime_inference.fleet.architecture import read_architecture
from prime_inference.fleet.arguments import WorkerPorts, worker_arguments
from prime_inference.fleet.byte_model import write_byte_model
from prime_inference.fleet.byte_weights import write_byte_weights
from prime_inference.fleet.catalogue import find_model, find_spec
from prime_inference.fleet.launcher.sources import model_source
from prime_inference.fleet.local import processes


def header(file: Path):
    """What a safetensors file says it holds, and its number of bytes after that."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), len(data) - 8 - length


def arguments(spec):
    ((role, pool),) = list(spec.topology.pools.items())[:1]
    return worker_arguments(spec, role, pool, source="model", ports=WorkerPorts())


def test_the_catalogue_has_the_shape_of_the_model_that_is_written(tmp_path):
    folder = write_byte_model(tmp_path / "bytes", 8192)
    assert read_architecture(folder / "config.json", "bytes") == find_model("bytes")


def test_the_weights_are_a_whole_model_without_gaps(tmp_path):
    write_byte_weights(tmp_path)
    tensors, nbytes = header(tmp_path / "model.safetensors")
    ends = [0, *(tensor["data_offsets"][1] for tensor in tensors.values())]
    assert [tensor["data_offsets"] for tensor in tensors.values()] == [
        list(pair) for pair in pairwise(ends)
    ]
    assert ends[-1] == nbytes == 4 * sum(math.prod(t["shape"]) for t in tensors.values())
    model = find_model("bytes")
    norms = (2 * model.layers + 1) * model.hidden
    assert nbytes == 4 * (parameters.count(model).total + norms)


def test_the_weights_are_the_same_each_time(tmp_path):
    """Prefill and decode may stand on machines of their own."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_byte_weights(tmp_path / name)
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b


def test_only_an_engine_that_computes_gets_weights(tmp_path):
    for name, wanted in (("vllm-cpu", True), ("mocker", False)):
        folder = Path(model_source(find_spec(name), tmp_path / name, tmp_path))
        assert (folder / "config.json").exists()
        assert (folder / "model.safetensors").exists() == wanted


def test_a_worker_on_cpus_is_told_bytes_and_one_on_gpus_a_fraction():
    """Several workers share a machine's memory, but none shares a GPU."""
    on_cpu, on_gpu = arguments(find_spec("vllm-cpu")), arguments(find_spec("qwen3-0.6b"))
    assert on_cpu[on_cpu.index("--kv-cache-memory-bytes") + 1] == str((4 << 30) // 50)
    assert "--gpu-memory-utilization" not in on_cpu
    assert {"--enforce-eager", "--dtype"} < set(on_cpu)
    assert on_gpu[on_gpu.index("--gpu-memory-utilization") + 1] == "0.9"
    assert not {"--kv-cache-memory-bytes", "--enforce-eager", "--dtype"} & set(on_gpu)


def test_workers_on_one_machine_move_kv_over_loopback_only():
    ports = count(20_000)
    frontend, *workers = processes(
        find_spec("vllm-cpu"),
        source="model",
        discovery=Path("discovery"),
        free_port=lambda: next(ports),
    )
    assert [one.name for one in workers] == ["prefill-0", "prefill-1", "decode-0"]
    for worker in workers:
        assert worker.environment["UCX_NET_DEVICES"] == "lo"
        assert worker.environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert "UCX_NET_DEVICES" not in frontend.environment
