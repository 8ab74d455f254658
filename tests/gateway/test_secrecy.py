"""No prompt, answer or key is written anywhere: not to logs, files, metrics or errors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from prime_inference.engines.mock import expected_text

from .processes import Processes, child_processes
from .running import MODEL

CANARY = "canary-7f3a91"
TOOL = {
    "type": "function",
    "function": {"name": CANARY, "description": CANARY, "parameters": {"title": CANARY}},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": CANARY},
    {"role": "user", "content": f"My secret is {CANARY}", "name": CANARY},
]
PLAIN: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "user": CANARY, "stop": [CANARY]}

BODIES: list[Any] = [
    PLAIN,
    {**PLAIN, "stream": True},
    {**PLAIN, "tools": [TOOL], "tool_choice": "required", "stream": True},
    {**PLAIN, "model": CANARY},
    {**PLAIN, CANARY: CANARY},
    {**PLAIN, "temperature": CANARY},
    {**PLAIN, "prediction": {"type": "content", "content": CANARY}},
    {**PLAIN, "messages": [{"role": CANARY, "content": CANARY}]},
    f'{{"messages": "{CANARY}'.encode(),
    f'{{"model": "{CANARY}\\ud800"}}'.encode(),
]
BEHAVIOURS = ["", "status-500", "status-400", "cut-after-3", "error-after-3", "html", "close"]


def ask_everything(processes: Processes) -> None:
    key = {"authorization": f"Bearer {processes.key}"}
    with httpx.Client(base_url=processes.base_url, headers=key, timeout=5) as client:
        for behaviour in BEHAVIOURS:
            processes.behave(behaviour)
            for body in BODIES:
                kind = "content" if isinstance(body, bytes) else "json"
                client.post("/chat/completions", **{kind: body})
        processes.behave("")
        client.post("/completions", json={"model": MODEL, "prompt": CANARY})
        client.post("/embeddings", json={"model": MODEL, "input": CANARY})
        client.post(f"/{CANARY}?{CANARY}={processes.key}", headers={"x-canary": CANARY})
        client.get(f"/models/{CANARY}/{CANARY}")
        wrong = {"authorization": f"Bearer {processes.key[:-1]}"}
        refused = client.post("/chat/completions", json=PLAIN, headers=wrong)
        assert refused.status_code == 401
        assert CANARY not in refused.text
        processes.behave("pace-20ms.answer-500")
        with (  # a client that leaves
            contextlib.suppress(httpx.ReadTimeout),
            client.stream("POST", "/chat/completions", json=PLAIN, timeout=0.2) as response,
        ):
            response.read()


@pytest.mark.parametrize("options", [(), ("--database", "sqlite")], ids=["plain", "billed"])
def test_nothing_that_was_said_is_written_anywhere(tmp_path: Path, options: tuple[str, ...]):
    with child_processes(tmp_path, *options) as processes:
        ask_everything(processes)
        metrics = httpx.get(f"{processes.control_url}/metrics").text
        unknown = httpx.get(f"{processes.control_url}/{CANARY}").text
    key_file = tmp_path / "state" / "api_key"
    assert key_file.read_text().strip() == processes.key
    key_file.unlink()
    written = {
        path.name: path.read_bytes().decode("latin-1")
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert len(written["generations.jsonl"].splitlines()) > len(BEHAVIOURS)
    written |= {"metrics": metrics, "unknown": unknown}
    answer = expected_text(MESSAGES)
    for name, text in written.items():
        if name.startswith("engine."):
            continue
        assert CANARY not in text, name
        assert processes.key not in text, name
        assert processes.key.split("_")[3] not in text, name
        assert answer[:9] not in text, name
    assert written["gateway.out"] == ""
    assert "Traceback" not in written["gateway.err"]
