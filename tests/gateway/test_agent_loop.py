"""An agent with OpenAI's SDK: it reads a file, edits it and runs a command, in a real folder.

The model's text is scripted, in the format of a model family; everything else is real: the
gateway finds the calls, the SDK reads them, the tools run, their results go back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from prime_inference.domain.models import GatewayParser
from prime_inference.engines.mock import MockEngine
from prime_inference.toolcalls.format import format_named

from .conftest import StartGateway
from .running import MODEL, RunningGateway


def tool(name: str, *arguments: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"} for argument in arguments},
                "required": list(arguments),
                "additionalProperties": False,
            },
        },
    }


TOOLS: Any = [
    tool("read_file", "path"),
    tool("edit_file", "path", "old", "new"),
    tool("run_command", "command"),
]
OLD = '<p class="x">&lt;tag&gt; &amp;amp; "quoted" \\n \\u0041</p>\n'
NEW = (
    '<div>\n\t<tool_call>{"name": "no call"}</tool_call>\n  &lt;b&gt; &quot;é\u2028上海🎉&quot;'
    " <arg_key>k</arg_key></arg_valu </parameter </function\n\n</div>\r\n"
)
PROGRAM = "import sys; sys.stdout.buffer.write(open('page.html', 'rb').read())"


class Workshop:
    """The tools, over one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_file(self, path: str) -> str:
        with (self._folder / path).open(encoding="utf-8", newline="") as file:
            return file.read()

    def edit_file(self, path: str, old: str, new: str) -> str:
        text = self.read_file(path)
        assert text.count(old) == 1
        with (self._folder / path).open("w", encoding="utf-8", newline="") as file:
            file.write(text.replace(old, new))
        return "edited"

    def run_command(self, command: str) -> str:
        arguments = json.loads(command)
        done = subprocess.run(arguments, cwd=self._folder, capture_output=True, check=True)
        return done.stdout.decode()


@pytest_asyncio.fixture
async def client(gateway_of: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=gateway_of.base_url, api_key=gateway_of.key, max_retries=0, timeout=10
    ) as client:
        yield client


@pytest.fixture(
    params=[
        "hermes",
        "kimi-k2",
        "deepseek-v3.1",
        "llama-3",
        "glm-4.7",
        "glm-4.5",
        "qwen3-coder",
        "deepseek-v3.2",
    ]
)
def form(request: pytest.FixtureRequest) -> str:
    """Every format there is."""
    return str(request.param)


@pytest_asyncio.fixture
async def gateway_of(start_gateway: StartGateway, engine: MockEngine, form: str) -> RunningGateway:
    parser = GatewayParser(form, prompt="gateway")
    return await start_gateway(engine, kinds=["llama.cpp"], tool_parser=parser)


async def answer(client: openai.AsyncOpenAI, messages: Any, *, stream: bool) -> Any:
    """The message, and why it ended."""
    asked: dict[str, Any] = {"model": MODEL, "messages": messages, "tools": TOOLS}
    if not stream:
        completion = await client.chat.completions.create(**asked)
        return completion.choices[0].message, completion.choices[0].finish_reason
    async with client.chat.completions.stream(**asked) as events:
        final = await events.get_final_completion()
    return final.choices[0].message, final.choices[0].finish_reason


async def run_agent(client: openai.AsyncOpenAI, workshop: Workshop, *, stream: bool) -> list[Any]:
    """Ask, run what is called, until the model says something; returns all messages."""
    messages: list[Any] = [{"role": "user", "content": "Change the page."}]
    while True:
        message, finish = await answer(client, messages, stream=stream)
        messages.append(message)
        if finish != "tool_calls":
            return messages
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            result = getattr(workshop, call.function.name)(**arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_agent_changes_a_file_and_nothing_on_the_way_changes_the_text(
    client: openai.AsyncOpenAI, engine: MockEngine, form: str, stream: bool, tmp_path: Path
):
    page = tmp_path / "page.html"
    page.write_bytes(f"before\n{OLD}after\n".encode())
    command = json.dumps([sys.executable, "-c", PROGRAM])
    script: list[tuple[str, dict[str, object]]] = [
        ("read_file", {"path": "page.html"}),
        ("edit_file", {"path": "page.html", "old": OLD, "new": NEW}),
        ("run_command", {"command": command}),
    ]
    engine.say(*(format_named(form).render_all([call]) for call in script), "Done.")

    messages = await run_agent(client, Workshop(tmp_path), stream=stream)

    assert page.read_bytes() == f"before\n{NEW}after\n".encode()
    results = [each["content"] for each in messages[1:] if isinstance(each, dict)]
    assert results == [f"before\n{OLD}after\n", "edited", f"before\n{NEW}after\n"]
    assert messages[-1].content == "Done."
    prompt = json.loads(engine.requests[-1].body)["messages"]
    for name, arguments in script:  # the calls stand in the prompt as the model wrote them
        assert any(
            each["content"] == format_named(form).render_all([(name, arguments)])
            for each in prompt
            if each["role"] == "assistant"
        )
    for result in results:
        assert any(
            each["content"] == f"<tool_response>\n{result}\n</tool_response>"
            for each in prompt
            if each["role"] == "user"
        )
