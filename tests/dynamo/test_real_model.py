"""A real model through Dynamo: gateway, frontend, router, our worker, llama.cpp."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from prime_inference.engines.dynamo.tokenizer import write_model_folder
from prime_inference.engines.local.supervisor import LocalEngine
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch
from prime_inference.fleet.fleet import read_fleet
from prime_inference.fleet.launcher.run import bring_down, detach, fleet_folder, until_ready

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2-dynamo.toml"
MODEL = "huggingfacetb/smollm2-135m-instruct"
READY_SECONDS = 170.0  # the weights may have to be fetched

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

TEXTS = [
    "Hello, world! It's 12345 o'clock.",
    "<|im_start|>user\nWhat is 7 * 8?<|im_end|>\n<|im_start|>assistant\n",
    "naïve café, 日本語, emoji 🙂 and\ttabs\r\n  spaces   ",
    "def f(x):\n    return x ** 2  # comment\n",
    "",
]

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def model_file() -> Path:
    return fetch(SMOLLM2_135M, Path.home() / ".cache" / "prime-inference", lambda done, total: None)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(model_file) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model_file, slots=1, context_tokens=2048)
    await engine.start()
    yield engine
    await engine.stop()


async def test_the_written_tokenizer_is_the_models_own(engine, model_file, tmp_path, dynamo_python):
    folder = write_model_folder(model_file, tmp_path / "model", 2048)
    script = (
        "import json, sys; from tokenizers import Tokenizer;"
        "t = Tokenizer.from_file(sys.argv[1]);"
        "texts = json.load(sys.stdin);"
        "ids = [t.encode(x, add_special_tokens=False).ids for x in texts];"
        "print(json.dumps([ids, [t.decode(i, skip_special_tokens=False) for i in ids]]))"
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [dynamo_python, "-c", script, str(folder / "tokenizer.json")],
        input=json.dumps(TEXTS),
        capture_output=True,
        text=True,
        check=True,
    )
    ids, decoded = json.loads(done.stdout)
    root = engine.base_url.removesuffix("/v1")
    async with httpx.AsyncClient(trust_env=False) as client:
        for text, mine in zip(TEXTS, ids, strict=True):
            answer = await client.post(
                f"{root}/tokenize", json={"content": text, "parse_special": True}
            )
            assert mine == answer.json()["tokens"], text
    assert decoded == TEXTS


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def gateway(tmp_path_factory, dynamo_python) -> AsyncIterator[dict[str, str]]:
    state_dir = tmp_path_factory.mktemp("state")
    file = state_dir / "fleet.toml"
    file.write_text(EXAMPLE.read_text() + "\n[gateway]\nport = 0\ncontrol_port = 0\n")
    folder = fleet_folder(state_dir, read_fleet(file))
    child = detach(file, folder, python=dynamo_python)
    try:
        status = await until_ready(folder, READY_SECONDS)
        frontend = status["deployments"][0]["base_url"].removesuffix("/v1")
        yield status["gateway"] | {"frontend": frontend}
    finally:
        with contextlib.suppress(Exception):
            await bring_down(folder)
        child.wait(60)


def chat(gateway, **fields):
    return {
        "url": f"{gateway['base_url']}/chat/completions",
        "headers": {"authorization": f"Bearer {gateway['api_key']}"},
        "json": {"model": MODEL, "messages": MESSAGES, **fields},
    }


async def test_the_answer_is_the_models_own_word_for_word(gateway, engine):
    fields = {"max_tokens": 24, "temperature": 0}
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        answer = (await client.post(**chat(gateway, **fields))).json()
        own = await client.post(
            f"{engine.base_url}/chat/completions",
            json={"model": MODEL, "messages": MESSAGES, "top_k": 0, "min_p": 0, **fields},
        )
    assert own.status_code == 200, own.text
    assert "choices" in answer, answer
    theirs = own.json()
    text = answer["choices"][0]["message"]["content"]
    assert text
    assert text == theirs["choices"][0]["message"]["content"]
    assert answer["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_the_next_turn_finds_its_prefix(gateway):
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        await client.post(**chat(gateway, max_tokens=4))
        answer = (await client.post(**chat(gateway, max_tokens=4))).json()
    usage = answer["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.9 * usage["prompt_tokens"]


async def test_a_client_that_leaves_stops_the_engine(gateway):
    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        asked = chat(gateway, max_tokens=1500, stream=True)
        async with client.stream("POST", **asked) as answer:
            async for _ in answer.aiter_lines():
                break
        for _ in range(100):
            text = (await client.get(f"{gateway['frontend']}/metrics")).text
            lines = [
                line
                for line in text.splitlines()
                if line.startswith(
                    (
                        "dynamo_frontend_inflight_requests{",
                        "dynamo_frontend_model_cancellation_total{",
                    )
                )
            ]
            values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
            if values.get("dynamo_frontend_model_cancellation_total"):
                break
            await asyncio.sleep(0.1)
    assert values["dynamo_frontend_model_cancellation_total"] == 1
    assert values["dynamo_frontend_inflight_requests"] == 0
