"""A fleet of real vLLM workers, as `prime inference fleet up` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import read_fleet
from prime_inference.fleet.launcher.control import Command, ask
from prime_inference.fleet.launcher.run import bring_down, detach, fleet_folder, until_ready
from prime_inference.fleet.launcher.state import StateFolder

MODEL = "random/bytes"

READY_SECONDS = 500.0
"""Three workers start in a minute on two idle cores and took two at a load of twelve: most of it
is importing torch and vLLM in nine processes."""

TOKENS = 8
"""Of an answer that is compared: without a cache each costs the whole prompt."""

GATEWAY = "\n[gateway]\nport = 0\ncontrol_port = 0\n"
"""Any free port: another gateway may run on this machine."""


class Fleet:
    """One deployment that runs, behind its gateway."""

    def __init__(self, folder: StateFolder, status: Any, client: httpx.AsyncClient) -> None:
        self.folder = folder
        self._client = client
        (self.deployment,) = status["deployments"]
        self._gateway = status["gateway"]

    @property
    def model_folder(self) -> Path:
        """Where the launcher wrote the model that the workers were given."""
        return self.folder.folder / "models" / str(self.deployment["id"]) / "bytes"

    async def ask(self, messages: list[Any], **fields: Any) -> Any:
        """The gateway's answer."""
        return await self._post(self._gateway["base_url"], messages, fields)

    async def ask_frontend(self, messages: list[Any], **fields: Any) -> Any:
        """Dynamo's own answer, which names the workers; the gateway tells nobody."""
        fields["nvext"] = {"extra_fields": ["worker_id", "timing"]}
        return await self._post(self.deployment["base_url"], messages, fields)

    async def _post(self, base_url: str, messages: list[Any], fields: dict[str, Any]) -> Any:
        answer = await self._client.post(
            f"{base_url}/chat/completions",
            headers={"authorization": f"Bearer {self._gateway['api_key']}"},
            json={"model": MODEL, "messages": messages, **fields},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def caches(self) -> dict[str, Any]:
        """What `prime inference fleet caches` says."""
        (one,) = (await ask(self.folder, Command("caches")))["deployments"]
        caches: dict[str, Any] = one["caches"]
        return caches

    async def metric(self, process: str, name: str, *labels: str) -> float:
        """A metric of a process, added up over those of its labels that have all of `labels`."""
        ports = {one["name"]: one["port"] for one in self.deployment["processes"]}
        text = (await self._client.get(f"http://127.0.0.1:{ports[process]}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(name + "{")]
        assert lines, f"{process} has no {name}"
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if all(label in line for label in labels)
        )


@contextlib.asynccontextmanager
async def running(text: str, state_dir: Path, python: str) -> AsyncIterator[Fleet]:
    """The fleet of a file with that text; its processes' last words where it does not start."""
    file = state_dir / "fleet.toml"
    file.write_text(text + GATEWAY)
    folder = fleet_folder(state_dir, read_fleet(file))
    began = time.monotonic()
    child = detach(file, folder, python=python)
    try:
        try:
            status = await until_ready(folder, READY_SECONDS)
        except FleetRefused as error:
            raise AssertionError(f"{error}\n{last_words(folder)}") from error
        print(f"ready after {time.monotonic() - began:.0f} s")
        async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
            yield Fleet(folder, status, client)
    finally:
        with contextlib.suppress(Exception):
            await bring_down(folder)
        child.wait(60)


def last_words(folder: StateFolder) -> str:
    logs = sorted(folder.logs.iterdir())
    return "\n".join(f"--- {log.name}\n{log.read_text()[-3000:]}" for log in logs)


async def models_own(python: str, folder: Path, prompts: list[str], tokens: int) -> list[str]:
    """What the model itself answers, computed by transformers in one piece and without a cache."""
    done = await asyncio.to_thread(
        subprocess.run,
        [python, str(Path(__file__).with_name("reference.py")), str(folder), str(tokens)],
        input=json.dumps(prompts),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout)
    return answers
