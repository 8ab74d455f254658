"""One client of a Mooncake store, as vLLM's connector uses it; runs in vLLM's environment.

    MOONCAKE_CONFIG_PATH=FILE python mooncake_client.py

Keeps KV blocks of GLM 5.3: 79 layers of NVFP4 rows and 22 of index keys, 64 tokens. Reads
commands from standard input, a JSON object a line, and answers each with one:

    {"do": "put", "blocks": [3, 4]}    from a cache of one region for each layer
    {"do": "get", "blocks": [3, 4]}    into a cache of whole blocks; says which are right
    {"do": "exist", "blocks": [3, 9]}
    {"do": "remove", "blocks": [3]}
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

from prime_inference.kvcache.layout import INDEX_KEY_BYTES, PackedBlock
from prime_inference.kvcache.row import ROW_BYTES

BLOCK_TOKENS = 64
PAGES = (BLOCK_TOKENS * ROW_BYTES,) * 79 + (BLOCK_TOKENS * INDEX_KEY_BYTES,) * 22
BLOCK = PackedBlock(PAGES)
ROOM = 16  # blocks that a cache has


def content(block: int) -> Any:
    """The bytes of a block: the same in every process."""
    return np.random.default_rng(block).integers(0, 256, BLOCK.nbytes, dtype=np.uint8)


def key(block: int) -> str:
    return f"glm-5.3@{block}"


class Client:
    def __init__(self) -> None:
        store: Any = importlib.import_module("mooncake.store")
        vllm: Any = importlib.import_module("vllm.distributed.mooncake_store")
        self._store = store.MooncakeDistributedStore()
        self._replicas = store.ReplicateConfig()
        config = vllm.MooncakeStoreConfig.load_from_config()
        vllm.setup_mooncake_store(self._store, config, "127.0.0.1")
        self._cache = np.zeros(ROOM * BLOCK.nbytes, np.uint8)
        self._base = self._cache.ctypes.data
        assert self._store.register_buffer(self._base, self._cache.nbytes) == 0

    def put(self, blocks: list[int]) -> list[int]:
        """What was stored of each block, in bytes or as an error below zero."""
        addresses, sizes = [], []
        for at, block in enumerate(blocks):
            whole, regions, begin = content(block), [], 0
            for region, page in enumerate(PAGES):  # one page of each layer's region
                offset = begin + at * page
                piece = BLOCK.page_offset(region)
                self._cache[offset : offset + page] = whole[piece : piece + page]
                regions.append(self._base + offset)
                begin += ROOM * page
            addresses.append(regions)
            sizes.append(list(PAGES))
        keys = [key(block) for block in blocks]
        return list(
            self._store.batch_put_from_multi_buffers(keys, addresses, sizes, self._replicas)
        )

    def get(self, blocks: list[int]) -> list[bool]:
        """Which of the blocks came, byte for byte."""
        self._cache[:] = 0
        addresses = [[self._base + at * BLOCK.nbytes] for at in range(len(blocks))]
        sizes = [[BLOCK.nbytes]] * len(blocks)
        keys = [key(block) for block in blocks]
        came = self._store.batch_get_into_multi_buffers(keys, addresses, sizes)
        whole = self._cache.reshape(ROOM, BLOCK.nbytes)
        return [
            size == BLOCK.nbytes and bool(np.array_equal(whole[at], content(block)))
            for at, (size, block) in enumerate(zip(came, blocks, strict=True))
        ]

    def exist(self, blocks: list[int]) -> list[bool]:
        return [one == 1 for one in self._store.batch_is_exist([key(block) for block in blocks])]

    def remove(self, blocks: list[int]) -> list[int]:
        return [self._store.remove(key(block), True) for block in blocks]


def main() -> None:
    client = Client()
    print(json.dumps({"ready": BLOCK.nbytes}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(client, command["do"])(command["blocks"])
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    main()
