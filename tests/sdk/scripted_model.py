"""A model behind an OpenAI-compatible server that works like an agent, by a script.

It reads a file, edits what it read, runs a command on the result and says what came out.
It decides by the conversation alone, so what a dialect loses or alters shows in what it
does next; and it objects when its own turns do not come back as it wrote them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FILE = "page.html"
BEFORE = (
    '<p title="a &lt; b">It\'s "5 &gt; 3" &amp;&amp; \\n {{x}}</p>\n'
    "</tool_call><|im_end|><parameter=path>\n\ttabs, é, 東京, 🚀 &#38;lt;\n"
)
OLD = '"5 &gt; 3" &amp;&amp; \\n'
NEW = '<b class=\'x\'>"6 &lt; 7"</b>\n]]> <!-- "&quot;" -->\r\n\\'
PIECE = 3  # characters of arguments in one event


@dataclass
class ScriptedModel:
    """What was asked of it, and what it found wrong."""

    base_url: str = ""
    turns: list[dict[str, Any]] = field(default_factory=list)  # its own, in order
    objections: list[str] = field(default_factory=list)

    def turn(self, body: dict[str, Any]) -> dict[str, Any]:
        """Its next message."""
        messages = body["messages"]
        self._check_own_turns([m for m in messages if m["role"] == "assistant"])
        results = [_text(m["content"]) for m in messages if m["role"] == "tool"]
        offered = {tool["function"]["name"] for tool in body["tools"]}
        if offered != {"read_file", "edit_file", "run_command"}:
            self.objections.append(f"these tools are offered: {offered}")
        message = self._next(results)
        del self.turns[len(results) :]
        self.turns.append(message)
        return message

    def _next(self, results: list[str]) -> dict[str, Any]:
        step = len(results)
        thought = f"<think>step {step} &lt; 4</think>"
        if step == 0:
            return _calls(step, thought, "read_file", {"path": FILE})
        if step == 1:
            start = results[0].index(OLD)  # of what it read: as it is, or the edit fails
            old = results[0][start : start + len(OLD)]
            return _calls(step, thought, "edit_file", {"path": FILE, "old": old, "new": NEW})
        if step == 2:
            return _calls(step, thought, "run_command", {"arguments": ["cat", FILE]})
        return {"reasoning_content": thought, "content": f"Now it is:\n{results[2]}"}

    def _check_own_turns(self, turns: list[dict[str, Any]]) -> None:
        for sent, mine in zip(turns, self.turns, strict=False):
            for name in ("content", "reasoning_content"):
                if (sent.get(name) or "") != mine.get(name, ""):
                    self.objections.append(f"{name}: {sent.get(name)!r}, not {mine.get(name)!r}")
            calls = [call["function"] for call in sent.get("tool_calls") or ()]
            if [_parsed(call) for call in calls] != [_parsed(c) for c in mine.get("calls", ())]:
                self.objections.append(f"calls: {calls}")


def _parsed(function: dict[str, Any]) -> Any:
    return function["name"], json.loads(function["arguments"])


def _calls(step: int, thought: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    return {
        "reasoning_content": thought,
        "content": f"Step {step}: <{name}> & so on.",
        "calls": [{"id": f"call_{step}", "name": name, "arguments": text}],
    }


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content"):
        for piece in _pieces(message[name]):
            yield {name: piece}
    for index, call in enumerate(message.get("calls", ())):
        function = {"name": call["name"], "arguments": ""}
        opening = {"index": index, "id": call["id"], "type": "function", "function": function}
        yield {"tool_calls": [opening]}
        for piece in _pieces(call["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]


def _whole(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": call["id"], "type": "function",
         "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in message.get("calls", ())
    ]  # fmt: skip
    told = {name: message[name] for name in ("reasoning_content", "content")}
    return {"role": "assistant", **told, **({"tool_calls": calls} if calls else {})}


@contextlib.contextmanager
def scripted_model() -> Iterator[ScriptedModel]:
    """The model, served on loopback."""
    model = ScriptedModel()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:  # the name that http.server asks for
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            message = model.turn(body)
            finish = "tool_calls" if message.get("calls") else "stop"
            usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
            if body.get("stream"):
                chunks: list[Any] = [
                    {"choices": [{"index": 0, "delta": delta}]} for delta in _deltas(message)
                ]
                chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
                chunks.append({"choices": [], "usage": usage})
                events = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
                self._send("".join(f"data: {event}\n\n" for event in events), "text/event-stream")
            else:
                choice = {"index": 0, "message": _whole(message), "finish_reason": finish}
                self._send(json.dumps({"choices": [choice], "usage": usage}), "application/json")

        def _send(self, text: str, kind: str) -> None:
            data = text.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        model.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
