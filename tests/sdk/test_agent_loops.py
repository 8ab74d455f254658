"""An agent that reads a file, edits it and runs a command, over each dialect.

The files are full of entities, quotes and tags; every character has to arrive unchanged,
in the arguments, in the results and in the model's own turns played back to it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import beta_tool

from tests.gateway.processes import child
from tests.gateway.running import MODEL
from tests.sdk.scripted_model import BEFORE, FILE, NEW, OLD, ScriptedModel, scripted_model

AFTER = BEFORE.replace(OLD, NEW)
ASKED = "Please put the comparison in bold & say what came out."


@dataclass
class Workplace:
    """A folder with the file, the gateway's address and key, and the model behind it."""

    folder: Path
    base_url: str
    key: str
    model: ScriptedModel

    def read_file(self, path: str) -> str:
        return (self.folder / path).read_bytes().decode()

    def edit_file(self, path: str, old: str, new: str) -> str:
        text = self.read_file(path)
        assert text.count(old) == 1
        (self.folder / path).write_bytes(text.replace(old, new).encode())
        return "done"

    def run_command(self, arguments: list[str]) -> str:
        done = subprocess.run(arguments, cwd=self.folder, capture_output=True, check=True)
        return done.stdout.decode()

    def call(self, name: str, arguments: str) -> str:
        result: str = getattr(self, name)(**json.loads(arguments))
        return result

    def assert_done(self, said: str) -> None:
        assert self.model.objections == []
        assert len(self.model.turns) == 4
        assert (self.folder / FILE).read_bytes() == AFTER.encode()
        assert said == f"Now it is:\n{AFTER}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ScriptedModel, Any]]:
    folder = tmp_path_factory.mktemp("agent")
    with (
        scripted_model() as model,
        child(
            folder,
            "gateway",
            "gateway",
            *("--upstream", model.base_url, "--model-id", MODEL, "--port", "0"),
            *("--control-port", "0", "--state-dir", str(folder / "state")),
        ) as gateway,
    ):
        yield model, gateway


@pytest.fixture
def workplace(server: tuple[ScriptedModel, Any], tmp_path: Path) -> Workplace:
    model, gateway = server
    model.turns.clear()
    model.objections.clear()
    (tmp_path / FILE).write_bytes(BEFORE.encode())
    return Workplace(tmp_path, gateway["base_url"], gateway["api_key"], model)


def parameters(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT = {"type": "string"}
TOOLS: dict[str, Any] = {
    "read_file": parameters(path=TEXT),
    "edit_file": parameters(path=TEXT, old=TEXT, new=TEXT),
    "run_command": parameters(arguments={"type": "array", "items": TEXT}),
}


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_over_chat_completions(workplace: Workplace, stream: bool):
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in TOOLS.items()
    ]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    with openai.OpenAI(base_url=workplace.base_url, api_key=workplace.key) as client:
        while True:
            if stream:
                with client.chat.completions.stream(
                    model=MODEL, messages=messages, tools=tools
                ) as events:
                    turn: Any = events.get_final_completion().choices[0].message
            else:
                answer = client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
                turn = answer.choices[0].message
            messages.append(turn)
            if not turn.tool_calls:
                break
            messages += [
                {
                    "role": "tool",
                    "tool_call_id": call.id,
                    "content": workplace.call(call.function.name, call.function.arguments),
                }
                for call in turn.tool_calls
            ]
    workplace.assert_done(turn.content)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_over_responses(workplace: Workplace, stream: bool, stored: bool):
    tools: Any = [
        {"type": "function", "name": name, "parameters": schema, "strict": True}
        for name, schema in TOOLS.items()
    ]
    new: list[Any] = [{"role": "user", "content": ASKED}]
    said: list[Any] = []
    previous: Any = openai.omit
    with openai.OpenAI(base_url=workplace.base_url, api_key=workplace.key) as client:
        while True:
            said += new
            asked: Any = {"model": MODEL, "tools": tools, "store": stored}
            asked |= {"input": new, "previous_response_id": previous} if stored else {"input": said}
            if stream:
                with client.responses.stream(**asked) as events:
                    response: Any = events.get_final_response()
            else:
                response = client.responses.create(**asked)
            said += response.output
            previous = response.id
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            new = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": workplace.call(call.name, call.arguments),
                }
                for call in calls
            ]
    workplace.assert_done(response.output_text)


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_over_messages_by_the_sdks_tool_runner(workplace: Workplace, stream: bool):
    @beta_tool
    def read_file(path: str) -> str:
        """Read a file."""
        return workplace.read_file(path)

    @beta_tool
    def edit_file(path: str, old: str, new: str) -> str:
        """Replace a text that is in the file once."""
        return workplace.edit_file(path, old, new)

    @beta_tool
    def run_command(arguments: list[str]) -> str:
        """Run a command."""
        return workplace.run_command(arguments)

    base_url = workplace.base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=base_url, api_key=workplace.key) as client:
        runner: Any = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=999,
            messages=[{"role": "user", "content": ASKED}],
            tools=[read_file, edit_file, run_command],
            stream=stream,
        )
        message: Any = None
        for turn in runner:
            message = turn.get_final_message() if stream else turn
    (text,) = [block.text for block in message.content if block.type == "text"]
    workplace.assert_done(text)
