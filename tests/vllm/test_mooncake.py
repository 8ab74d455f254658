"""A Mooncake master and two clients that move KV blocks: the second cache tier.

The clients set themselves up with what `mooncake_config` renders, but for sizes and RDMA, read by
vLLM's own code, and store and load as vLLM's connector does: pages of all layers gathered into one
object. The connector itself needs CUDA.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import prime_inference
from prime_inference.fleet.arguments import mooncake_config
from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.launcher.ports import Ports

pytestmark = pytest.mark.timeout(240)

OURS = str(Path(prime_inference.__file__).parents[1])
MIB = 1 << 20
BLOCK_BYTES = 64 * (79 * 352 + 22 * 132)
LENT_BYTES = 64 * MIB  # to the store, by the one client that lends
BUFFER_BYTES = 32 * MIB


class Client:
    """A client in a process of its own."""

    def __init__(self, python: str, config: dict[str, object], folder: Path) -> None:
        file = folder / "mooncake.json"
        file.write_text(json.dumps(config))
        self._log = folder / "client.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [python, str(Path(__file__).with_name("mooncake_client.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ
                | {
                    "MOONCAKE_CONFIG_PATH": str(file),
                    "MC_STORE_MEMCPY": "0",  # a block of the same machine goes over the network too
                    "PYTHONPATH": OURS,  # vLLM's environment has not this project
                },
            )

    def until_ready(self) -> None:
        assert self._read("ready") == BLOCK_BYTES

    def do(self, what: str, *blocks: int) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, "blocks": blocks}) + "\n")
        self.process.stdin.flush()
        return self._read("answer")

    def _read(self, name: str) -> Any:
        """The value of that name in the next object; other programs' lines are passed over."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)[name]
        raise AssertionError(f"the client ended:\n{self._log.read_text()[-3000:]}")


@contextmanager
def ending(process: subprocess.Popen[Any]) -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def master(vllm_python, tmp_path_factory) -> Iterator[str]:
    """Where the master listens."""
    missing = subprocess.run([vllm_python, "-c", "import mooncake.store"], capture_output=True)
    if b"libibverbs" in missing.stderr:
        pytest.skip("Mooncake's wheel wants libibverbs.so.1: apt-get install libibverbs1")
    ports = Ports()
    port, metrics = ports.take(), ports.take()
    log = tmp_path_factory.mktemp("master") / "master.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(Path(vllm_python).with_name("mooncake_master")),
                "--rpc_address=127.0.0.1", f"--rpc_port={port}",
                "--metrics_host=127.0.0.1", f"--metrics_port={metrics}",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    with ending(process):
        until = time.monotonic() + 60
        while "admin server started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def clients(master, vllm_python, tmp_path_factory) -> Iterator[tuple[Client, Client]]:
    """One that lends its memory to the store, and one that lends none."""
    rendered = mooncake_config(find_spec("glm-5.3-gb200"), master)
    small = rendered | {"protocol": "tcp", "local_buffer_size": BUFFER_BYTES}
    lender = small | {"global_segment_size": LENT_BYTES}
    guest = small | {"global_segment_size": 0, "mode": "standalone-store"}
    with ExitStack() as stack:
        made = []
        for config in (lender, guest):
            client = Client(vllm_python, config, tmp_path_factory.mktemp("client"))
            stack.enter_context(ending(client.process))
            made.append(client)
        for client in made:  # both import vLLM at a time
            client.until_ready()
        yield made[0], made[1]


def test_a_block_of_one_client_comes_whole_to_the_other(clients):
    lender, guest = clients
    lender.do("put", *range(8))
    assert guest.do("get", *range(8)) == [True] * 8


def test_a_client_without_memory_of_its_own_stores_in_the_others(clients):
    lender, guest = clients
    guest.do("put", 100, 101)
    assert lender.do("exist", 100, 101) == [True, True]
    assert lender.do("get", 100, 101) == [True, True]


def test_what_is_not_there_is_said_not_to_be(clients):
    lender, guest = clients
    guest.do("put", 200)
    assert guest.do("exist", 200, 201) == [True, False]
    assert guest.do("get", 200, 201) == [True, False]
    lender.do("remove", 200)
    assert guest.do("exist", 200) == [False]
    assert guest.do("get", 200) == [False]


def test_a_full_store_makes_room_and_never_gives_a_wrong_block(clients):
    """The tier forgets; it must not mix up."""
    _, guest = clients
    many = 2 * LENT_BYTES // BLOCK_BYTES
    for block in range(300, 300 + many, 4):
        guest.do("put", *range(block, block + 4))
    there = [block for block in range(300, 300 + many) if guest.do("exist", block) == [True]]
    assert 0 < len(there) < many
    for block in there:
        assert guest.do("get", block) == [True] or guest.do("exist", block) == [False]


def test_a_lender_that_dies_takes_its_blocks_along_and_nobody_hangs(clients):
    """The master forgets a client that it has not heard for ten seconds; until then it says that
    the blocks exist, but none is given out."""
    lender, guest = clients
    guest.do("put", 400)
    lender.process.kill()
    lender.process.wait(10)
    assert guest.do("get", 400) == [False]
    while guest.do("exist", 400) == [True]:  # no longer than the test may take
        time.sleep(0.5)
    assert guest.do("get", 400) == [False]
